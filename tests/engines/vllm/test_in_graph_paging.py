"""What a worker's arena has room for, and may be resized to."""

import json
import time
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest
from file_store import write_store

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from wisp.allocator import model_shape  # noqa: E402
from wisp.allocator.budget import staging_bytes  # noqa: E402
from wisp.engines.vllm.budget.start_plan import rounded_regions  # noqa: E402
from wisp.engines.vllm.in_graph_paging import InGraphPaging  # noqa: E402
from wisp.engines.vllm.paging import LoadedLayer, WorkerPaging  # noqa: E402
from wisp.engines.vllm.publisher import Publisher  # noqa: E402
from wisp.engines.vllm.settings import WispSettings  # noqa: E402
from wisp.errors import ConfigError  # noqa: E402
from wisp.pager.counters import Counters, PoolFacts  # noqa: E402
from wisp.pager.store import HostStore  # noqa: E402
from wisp.pager.stream_layout import StreamShape  # noqa: E402

QWEN = Path(__file__).parents[2] / "allocator" / "configs" / "qwen3-30b-a3b.json"
BIG = {"w": torch.empty(32, 9 << 20, dtype=torch.int8, device="meta")}
"""Of experts of 9 MiB two groups of eight pass through the staging area."""


def make(slots, **how):
    return InGraphPaging([HostStore(BIG)], slots, torch.device("cpu"), **how)


def test_a_planar_arena_has_room_for_a_layer_s_missing_experts_and_the_next_layer_s_first():
    assert make(4).arena.shape.staging_rows == 16
    assert make(4, planar=True).arena.shape.staging_rows == 32 + 16  # 28 in groups of eight
    assert make(4, planar=True, least_slots=2).arena.shape.staging_rows == 32 + 16
    assert make(24, planar=True).arena.shape.staging_rows == 8 + 16
    assert make(24, planar=True).stream.shape == StreamShape(8, 3, whole=True)


@pytest.mark.parametrize("kind", ["interleaved", "planar", "in files"])
@pytest.mark.parametrize("experts", [16, 40])
def test_rows_beside_the_slots_are_those_that_a_plan_counts(tmp_path, kind, experts):
    sizes = {"num_experts": experts, "num_experts_per_tok": 4, "hidden_size": 64, "moe_intermediate_size": 32}
    if kind == "planar":
        sizes["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
    shape = model_shape({**json.loads(QWEN.read_text()), **sizes})
    like = {"w13_weight": torch.empty(experts, 64, 64), "w2_weight": torch.empty(experts, 64, 32)}
    store = HostStore({name: tensor.bfloat16() for name, tensor in like.items()})
    stores = [write_store(store, tmp_path / "file") if kind == "in files" else store]
    how = {"planar": kind == "planar", "most_slots": experts}
    arena = InGraphPaging(stores, shape.top_k, torch.device("cpu"), **how).arena
    assert staging_bytes(shape, in_files=kind == "in files") == arena.shape.staging_rows * shape.expert_bytes
    assert shape.expert_format.is_planar == arena.planar


def test_slots_shrink_no_further_than_a_step_has_rows_for_its_overflow():
    paging = make(30, planar=True, least_slots=24, most_slots=31)
    for slots in (31, 8):
        paging.resize(slots)
        assert paging.state.slots == paging.arena.shape.slots == slots
    with pytest.raises(ConfigError, match="between 8 and 32"):
        paging.resize(7)


def test_a_budget_leaves_room_for_the_last_chunk_of_every_region_of_an_arena():
    worker = WorkerPaging(WispSettings(4), None, None)
    assert rounded_regions(worker) == 0
    tensors = {name: torch.empty(32, 64, dtype=torch.int32, device="meta") for name in ("w13", "w2", "scale")}
    for planar, regions in ((False, 1), (True, 3)):
        worker.in_graph = InGraphPaging([HostStore(tensors)], 4, torch.device("cpu"), planar=planar)
        storages = {tensor.untyped_storage().data_ptr() for tensor in worker.in_graph.arena.tensors.values()}
        assert rounded_regions(worker) == len(storages) == regions


def test_a_worker_counts_what_was_needed_after_its_warm_up():
    worker = WorkerPaging(WispSettings(4, measure=True), None, None)
    worker.in_graph = make(4)
    state = worker.in_graph.state
    state.fields[:, 0] = 7  # the warm-up's steps
    worker.forget_warm_up()
    assert state.fields[:, 0].tolist() == [0]
    state.ring.words[0, 0, 0], state.ring.words[1, 0, 0] = 0b11, 0b10
    state.fields[:, 0] = 2
    worker.routing.catch_up(exactly=True)
    (curve,) = worker.routing.curves()
    assert worker.routing.lost == 0
    assert [curve.steps, curve.cold_misses, curve.misses[0]] == pytest.approx([2, 2, 3], rel=1e-2)  # fading a little


def test_what_is_to_be_told_of_is_paged_with_a_slot_for_every_expert_too():
    store = HostStore(BIG)

    def pages_nothing(slots, **settings):
        return WorkerPaging(WispSettings(slots, **settings), None, None).pages_nothing(store)

    assert pages_nothing(32)
    assert not pages_nothing(31)
    for asked in ("recordable", "measure", "break_expert"):
        assert not pages_nothing(32, **{asked: True})


def test_a_publisher_follows_a_warm_worker_and_stops():
    worker = WorkerPaging(WispSettings(4, measure=True), None, None)
    worker.in_graph = make(4)
    publisher = Publisher(worker)
    publisher.start()
    worker.forget_warm_up()
    worker.in_graph.state.fields[:, 0] = 3
    deadline = time.monotonic() + 20
    while worker.routing.steps == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    publisher.stop()
    assert not publisher.is_alive()
    assert worker.routing.steps == pytest.approx(2, rel=1e-2)  # the newest may still be being written


def test_a_publisher_tells_what_an_idle_device_has_counted_and_not_shown():
    worker = WorkerPaging(WispSettings(4), None, None)
    worker.in_graph = make(4)
    worker.counting.counters = Counters(PoolFacts(32, 4, 1, "", "cpu"), 1, None)
    worker.counting.counters.add_layer("layer", page_locked=True)
    publisher = Publisher(worker)
    publisher.start()
    worker.forget_warm_up()
    worker.in_graph.state.fields[0, :3] = torch.tensor([3, 24, 1])
    deadline = time.monotonic() + 20
    while worker.counting.counters.layer(0)["steps"] == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    publisher.stop()
    assert [worker.counting.counters.layer(0)[name] for name in ("steps", "references", "faults")] == [3, 24, 1]


def test_no_publisher_holds_on_to_slots_that_are_made_anew():
    worker = WorkerPaging(WispSettings(4), None, None)
    layer = SimpleNamespace(leave_slots=lambda: None, take_slots=lambda: None)
    worker.in_graph, worker.layers = make(4), [LoadedLayer("layer", HostStore(BIG), lambda: layer)]
    worker.counting.counters = Counters(PoolFacts(32, 4, 1, "", "cpu"), 1, None)
    publisher = worker.counting.publisher = Publisher(worker)
    publisher.start()
    worker.make_slots(8)  # its memory cannot grow
    assert not publisher.is_alive()
    assert worker.counting.publisher is None
    assert worker.in_graph is None
    assert worker.counting.counters.facts.expert_slots == 8


def test_what_was_read_before_does_not_overtake_what_was_read_later():
    """The publisher's thread is held up between reading and passing on, while somebody asks for exact counts."""
    has_read, may_go_on, counted = Event(), Event(), [1.0]

    def totals():
        steps = counted[0]
        if not has_read.is_set():
            has_read.set()
            may_go_on.wait(20)
        return {"steps": steps}

    worker = WorkerPaging(WispSettings(4), None, None)
    worker.counting.counters = Counters(PoolFacts(32, 4, 1, "", "cpu"), 1, None)
    worker.counting.counters.add_layer("layer", page_locked=True)
    state = SimpleNamespace(refresh_mirror=lambda: None)
    worker.in_graph = SimpleNamespace(pagers=[SimpleNamespace(totals=totals)], state=state)
    publisher, asked = Thread(target=worker.publish), Thread(target=worker.publish, kwargs={"exactly": True})
    publisher.start()
    assert has_read.wait(20)
    counted[0] = 2.0
    asked.start()
    asked.join(0.2)  # it has to wait
    may_go_on.set()
    publisher.join()
    asked.join()
    assert worker.counting.counters.layer(0)["steps"] == 2.0
