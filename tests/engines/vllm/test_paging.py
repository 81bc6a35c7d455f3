"""A worker's layers from the first that is made to slots that are made anew, with stand-ins for what vLLM has."""

import gc
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from wisp.engines.vllm.counters import counter_files  # noqa: E402
from wisp.engines.vllm.in_graph_paging import InGraphPaging  # noqa: E402
from wisp.engines.vllm.kernels import padding  # noqa: E402
from wisp.engines.vllm.kernels.base import CPU_KIND, MARLIN_KIND, TRITON_KIND  # noqa: E402
from wisp.engines.vllm.loading.model_loading import ModelLoading  # noqa: E402
from wisp.engines.vllm.paging import WorkerPaging  # noqa: E402
from wisp.engines.vllm.publisher import Publisher  # noqa: E402
from wisp.engines.vllm.settings import WispSettings  # noqa: E402
from wisp.errors import UnsupportedError  # noqa: E402
from wisp.pager.counters import Counters  # noqa: E402
from wisp.pager.store import HostStore  # noqa: E402

NAMES = ("layer 0", "layer 1")
EXPERTS = 8
PLAIN = {"quant_dtype": None, "apply": None, "moe_sum": None}
SCALED = {**PLAIN, "quant_dtype": "fp8", "block_shape": None, "per_act_token_quant": False, "a2_scale": None}


class Layer:
    """As far as paging looks."""

    top_k, hidden_size, params_dtype = 2, 16, torch.float32
    moe_config = SimpleNamespace(device="cpu", moe_parallel_config=SimpleNamespace(ep_size=1))

    def __init__(self, worker, kind, experts, events):
        self.place = worker.add_layer()
        self.layer_name = NAMES[self.place]
        self.store = HostStore({"w13_weight": torch.zeros(EXPERTS, 16, 16), "w2_weight": torch.zeros(EXPERTS, 16, 16)})
        self.take_slots = lambda: self._take(worker, kind, SimpleNamespace(**experts))
        self.paged, self.events = None, events

    def _take(self, worker, kind, experts):
        self.paged = worker.page(self.place, kind, experts, self)
        self.events.append(f"{self.layer_name} takes slots")

    def leave_slots(self):
        self.paged = None
        self.events.append(f"{self.layer_name} leaves slots")


@pytest.fixture(autouse=True)
def _surroundings(tmp_path, monkeypatch):
    monkeypatch.setattr(counter_files.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(padding, "is_routed", lambda *_: False)


@pytest.fixture
def make(monkeypatch):
    """(worker, its layers, what happens to them), before any is loaded."""
    made = []

    def make(kind, experts=PLAIN, *, on_device, **settings):
        monkeypatch.setattr(WispSettings, "decides_on_device", lambda *_: on_device)
        config = SimpleNamespace(
            instance_id="engine",
            parallel_config=SimpleNamespace(world_size=1, rank=0),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=4),
            compilation_config=SimpleNamespace(cudagraph_capture_sizes=[]),
        )
        events = []
        worker = WorkerPaging(WispSettings(**{"expert_slots": 4, **settings}), config, ModelLoading(None))
        made.append(worker)
        return worker, [Layer(worker, kind, experts, events) for _ in NAMES], events

    yield make
    for worker in made:
        worker.counting.stop_publisher()


def load(worker, layers):
    for layer in layers:
        worker.finish(layer)


def test_layers_are_paged_in_order_once_the_last_is_loaded(make):
    worker, layers, events = make(CPU_KIND, on_device=False)
    worker.finish(layers[0])
    assert (events, worker.layers) == ([], [])
    worker.finish(layers[1])
    assert events == [f"{name} takes slots" for name in NAMES]
    assert [(name, store, module()) for name, store, module in worker.layers] == [
        (layer.layer_name, layer.store, layer) for layer in layers
    ]
    assert worker.loading.finished == []
    (path,) = counter_files.of_engine("engine")
    assert Counters.open(path).layers == NAMES


@pytest.mark.parametrize(
    ("kind", "experts", "how", "kernel"),
    [
        (CPU_KIND, PLAIN, {"on_device": False}, "SlotIdKernel"),
        (TRITON_KIND, PLAIN, {"on_device": False}, "ExpertMapKernel"),
        (TRITON_KIND, PLAIN, {"on_device": False, "expert_slots": EXPERTS}, "ExpertMapKernel"),
        (TRITON_KIND, PLAIN, {"on_device": True}, "InGraphKernel"),
        (TRITON_KIND, SCALED, {"on_device": True}, "PlanarKernel"),
        (MARLIN_KIND, PLAIN, {"on_device": True}, "PlanarKernel"),
        (TRITON_KIND, PLAIN, {"on_device": True, "expert_slots": EXPERTS}, "AllResidentKernel"),
        (TRITON_KIND, PLAIN, {"on_device": True, "expert_slots": EXPERTS, "measure": True}, "InGraphKernel"),
    ],
)
def test_a_kernel_is_chosen_by_what_it_takes_and_who_decides(make, kind, experts, how, kernel):
    worker, layers, _ = make(kind, experts, **how)
    load(worker, layers)
    assert [type(layer.paged.kernel).__name__ for layer in layers] == [kernel] * 2
    decided_on_device = kernel in ("InGraphKernel", "PlanarKernel")
    assert (worker.in_graph is not None, worker.counting.publisher is not None) == (decided_on_device,) * 2
    assert len(worker.pagers) == (0 if how["on_device"] else 2)
    assert all(set(layer.paged.slots) == {"w13_weight", "w2_weight"} for layer in layers)


def test_an_arena_that_can_grow_stays_where_it_is(make):
    worker, layers, events = make(TRITON_KIND, on_device=True)
    load(worker, layers)
    before = worker.in_graph, worker.counting.publisher, layers[0].paged
    events.clear()
    worker.make_slots(6)
    assert (worker.in_graph, worker.counting.publisher, layers[0].paged) == before
    assert events == []
    assert worker.counting.counters.facts.expert_slots == worker.in_graph.state.slots == 6


@pytest.mark.parametrize("on_device", [True, False])
def test_other_slots_are_given_back_before_new_ones_are_made(make, monkeypatch, on_device):
    worker, layers, events = make(TRITON_KIND, on_device=on_device)
    load(worker, layers)
    before = worker.in_graph, dict(worker.pagers)
    events.clear()
    stop, collect = Publisher.stop, gc.collect

    def refuse(*_):
        raise UnsupportedError("no mapped memory")

    with monkeypatch.context() as patch:
        patch.setattr(InGraphPaging, "resize", refuse)
        patch.setattr(Publisher, "stop", lambda publisher: (events.append("publisher stops"), stop(publisher)))
        patch.setattr(gc, "collect", lambda: (events.append("memory is collected"), collect()))
        worker.make_slots(6)
    assert events == [
        *["publisher stops"] * on_device,
        *(f"{name} leaves slots" for name in NAMES),
        "memory is collected",
        *(f"{name} takes slots" for name in NAMES),
    ]
    assert (worker.in_graph, worker.pagers) != before
    assert (worker.counting.publisher is not None) == on_device
    assert worker.counting.counters.facts.expert_slots == worker.slots == 6
    assert worker.counting.counters.layers == NAMES


def test_a_worker_holds_on_to_no_layer(make):
    """So that a dropped engine takes its stores along."""
    worker, layers, _ = make(TRITON_KIND, on_device=False)
    load(worker, layers)
    layers.clear()
    gc.collect()
    assert [layer.module() for layer in worker.layers] == [None, None]
