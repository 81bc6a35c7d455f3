"""More and fewer slots under a captured graph, and a ring that is read beside it, on a real device."""

import random
import threading

import numpy as np
import pytest
import torch
from device_layers import EXPERTS, LAYERS, MOST_SLOTS, SLOTS, TOP_K, Layers

from wisp.errors import DeviceMemoryError, UnsupportedError
from wisp.pager.device_memory import DeviceMemory
from wisp.policies import make_policy
from wisp.resident import ResidentSet
from wisp.trace import RoutingTrace


class Replayed:
    """One captured step of all layers, and what the host would have decided."""

    def __init__(self, layers: Layers) -> None:
        self.layers, self.random = layers, random.Random(0)
        self.ids = torch.zeros((LAYERS, 1, TOP_K), dtype=torch.int32, device=layers.device)
        for pager, chosen in zip(layers.pagers, self.ids, strict=True):  # compiles outside the capture
            pager.page(chosen)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.rows = [pager.page(chosen) for pager, chosen in zip(layers.pagers, self.ids, strict=True)]
        layers.state.reset()
        slots = layers.state.slots
        self.residents = [ResidentSet(EXPERTS, slots, make_policy("lru")) for _ in range(LAYERS)]
        self.needed: list[list[list[int]]] = [[] for _ in range(LAYERS)]

    def step(self, *, check: bool = True) -> None:
        step = [self.random.sample(range(EXPERTS), TOP_K) for _ in range(LAYERS)]
        self.ids.copy_(torch.tensor(step, dtype=torch.int32)[:, None])
        self.graph.replay()
        for layer, resident in enumerate(self.residents):
            self.needed[layer].append(step[layer])
            resident.plan(step[layer], direct=True)
            if check:
                assert self.layers.state.slot_of[layer].tolist() == resident.slot_table().tolist()

    def resize(self, slots: int) -> None:
        self.layers.state.set_slots(slots)
        for layer, resident in enumerate(self.residents):
            resident.resize(slots)
            assert self.layers.state.slot_of[layer].tolist() == resident.slot_table().tolist()


@pytest.fixture(scope="module", params=["interleaved", "planar"])
def layers(request):
    return Layers(planar=request.param == "planar")


def test_a_captured_graph_goes_on_after_every_resize(layers):
    replayed = Replayed(layers)
    addresses = [tensor.data_ptr() for tensor in layers.arena.tensors.values()]
    for slots in (SLOTS, MOST_SLOTS, 10, 31, TOP_K, SLOTS):
        replayed.resize(slots)
        assert [layers.wrong_slots(layer) for layer in range(LAYERS)] == [0] * LAYERS
        for _ in range(20):
            replayed.step()
        assert [layers.wrong_slots(layer) for layer in range(LAYERS)] == [0] * LAYERS
    assert [tensor.data_ptr() for tensor in layers.arena.tensors.values()] == addresses
    with pytest.raises(UnsupportedError, match="at most"):
        layers.state.set_slots(MOST_SLOTS + 1)


def test_memory_is_taken_and_given_back(layers):
    layers.state.set_slots(TOP_K)
    free_before, _ = torch.cuda.mem_get_info()
    layers.state.set_slots(MOST_SLOTS)
    free_large, _ = torch.cuda.mem_get_info()
    layers.state.set_slots(TOP_K)
    free_after, _ = torch.cuda.mem_get_info()
    grown = (MOST_SLOTS - TOP_K) * LAYERS * layers.stores[0].expert_bytes
    assert abs(free_before - free_after) < 16 << 20
    assert abs(free_before - free_large - grown) < 64 << 20
    layers.state.set_slots(SLOTS)


def test_a_device_without_room_says_so_and_keeps_what_it_has():
    device = torch.device("cuda", torch.cuda.current_device())
    _, total = torch.cuda.mem_get_info()
    memory = DeviceMemory(5 << 20, alignment=3 << 10, device=device, most_bytes=2 * total)
    memory.bytes[: 5 << 20].fill_(7)
    address = memory.bytes.data_ptr()
    assert address % (3 << 10) == 0
    with pytest.raises(DeviceMemoryError, match=r"GiB of device memory, but \S+ are free"):
        memory.resize(2 * total)
    memory.resize(600 << 20)
    memory.bytes[5 << 20 : 600 << 20].fill_(8)
    assert (memory.bytes.data_ptr(), memory.nbytes) == (address, 600 << 20)
    assert bool((memory.bytes[: 5 << 20] == 7).all())
    memory.resize(1 << 20)
    assert bool((memory.bytes[: 1 << 20] == 7).all())


def test_memory_is_given_back_with_the_last_tensor():
    device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free_before, _ = torch.cuda.mem_get_info()
    memory = DeviceMemory(600 << 20, alignment=256, device=device, most_bytes=700 << 20)
    view = memory.bytes[:100]
    del memory
    view.fill_(3)
    assert torch.cuda.mem_get_info()[0] <= free_before - (500 << 20)
    del view
    assert abs(torch.cuda.mem_get_info()[0] - free_before) < 16 << 20


def test_a_reader_in_another_thread_gets_every_step(layers):
    replayed = Replayed(layers)
    reader = layers.state.routing()
    found, done = [], threading.Event()

    def read() -> None:
        while not done.is_set():
            found.append(reader.read())

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(1500):
            replayed.step(check=False)
    finally:
        done.set()
        thread.join()
    found.append(reader.read(exactly=True))
    assert sum(routed.lost for routed in found) == 0
    assert sum(routed.bits.shape[1] > 0 for routed in found) > 5
    trace = RoutingTrace(np.concatenate([routed.bits for routed in found], axis=1), EXPERTS)
    assert trace == RoutingTrace.from_steps(EXPERTS, replayed.needed)
