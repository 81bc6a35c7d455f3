"""Paging on a real device: many programs at once, CUDA graphs, streams and page-locked memory."""

import random

import pytest
import torch
from device_layers import EXPERTS, LAYERS, SLOTS, TOP_K, Layers

from wisp.errors import HostMemoryError
from wisp.pager.host_memory import HostRegion
from wisp.pager.stream import ExpertStream
from wisp.policies import make_policy
from wisp.resident import ResidentSet


@pytest.fixture(scope="module", params=["interleaved", "planar", "in files"])
def layers(request):
    return Layers(planar=request.param == "planar", in_files=request.param == "in files")


def test_a_captured_graph_decides_as_the_host_does(layers):
    layers.state.reset()
    rng = random.Random(0)
    residents = [ResidentSet(EXPERTS, SLOTS, make_policy("lru")) for _ in range(LAYERS)]
    for tokens in (1, 2, 4):
        ids = torch.zeros((LAYERS, tokens, TOP_K), dtype=torch.int32, device=layers.device)
        rows: list[torch.Tensor] = []
        for pager, chosen in zip(layers.pagers, ids, strict=True):  # compiles outside the capture
            pager.page(chosen)
        layers.state.reset()
        residents = [ResidentSet(EXPERTS, SLOTS, make_policy("lru")) for _ in range(LAYERS)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            rows = [pager.page(chosen) for pager, chosen in zip(layers.pagers, ids, strict=True)]
        layers.state.reset()
        for _ in range(40):
            step = [[rng.sample(range(EXPERTS), TOP_K) for _ in range(tokens)] for _ in range(LAYERS)]
            ids.copy_(torch.tensor(step, dtype=torch.int32))
            graph.replay()
            torch.cuda.synchronize()
            for layer, resident in enumerate(residents):
                plan = resident.plan([e for token in step[layer] for e in token], direct=True)
                assert layers.state.slot_of[layer].tolist() == resident.slot_table().tolist()
                row_of = layers.arena.home_rows(layers.stores[layer]).tolist()
                overflow = plan.direct[: layers.arena.shape.staging_rows]
                for place, expert in enumerate(overflow):
                    row_of[expert] = place
                for expert, slot in resident.slot_of.items():
                    row_of[expert] = layers.arena.shape.slot_row(layer, slot)
                assert rows[layer].tolist() == [row_of[e] for token in step[layer] for e in token]
                if layer == LAYERS - 1:  # the last to use the overflow rows
                    assert all(layers.holds(layer, row_of[expert], expert) for expert in overflow)
        assert [layers.wrong_slots(layer) for layer in range(LAYERS)] == [0] * LAYERS


def test_a_stream_shows_every_expert_s_bytes_and_decode_goes_on(layers):
    layers.state.reset()
    stream = ExpertStream(layers.pagers, layers.state, layers.staging)
    ids = torch.arange(EXPERTS, dtype=torch.int32, device=layers.device).view(-1, TOP_K)
    for _ in range(3):
        seen = []
        for layer in range(LAYERS):
            for row_of in stream.waves(layer, ids):
                table = row_of.tolist()
                for expert, row in enumerate(table):
                    if row >= 0:
                        seen.append((layer, expert))
                        assert layers.holds(layer, row, expert)
        assert sorted(seen) == [(layer, expert) for layer in range(LAYERS) for expert in range(EXPERTS)]
        for pager in layers.pagers:
            pager.page(torch.randint(0, EXPERTS, (1, TOP_K), dtype=torch.int32, device=layers.device))
        assert [layers.wrong_slots(layer) for layer in range(LAYERS)] == [0] * LAYERS


def test_what_a_stream_shows_stays_until_a_slow_kernel_has_read_it(layers):
    """Nothing waits for the device here, so that copies run ahead as far as they may."""
    stream = ExpertStream(layers.pagers, layers.state, layers.staging)
    ids = torch.arange(EXPERTS, dtype=torch.int32, device=layers.device).view(-1, TOP_K)
    expected = torch.tensor(
        [[checksum(store.tensors["w13"][expert][None]).item() for expert in range(EXPERTS)] for store in layers.stores]
    )
    for is_warm in (False, True):
        if not is_warm:
            layers.state.reset()
        found = torch.zeros((LAYERS, EXPERTS), dtype=torch.int64, device=layers.device)
        for layer in range(LAYERS):
            for row_of in stream.waves(layer, ids):
                torch.cuda._sleep(2_000_000)
                sums = checksum(layers.arena.tensors["w13"][row_of.clamp(min=0)])
                found[layer] += torch.where(row_of >= 0, sums, 0)
        assert found.cpu().tolist() == expected.tolist()


def checksum(experts):
    """int64 [experts]"""
    return experts.reshape(len(experts), -1).view(torch.uint8).sum(dim=1, dtype=torch.int64)


def test_a_kernel_reads_an_expert_where_it_lies(layers):
    if not layers.arena.reaches(layers.stores[1]):
        pytest.skip("it does not reach this store")
    row = layers.arena.direct_row(layers.stores[1]) + 5
    weights = layers.arena.tensors["w13"]
    address = weights.data_ptr() + row * weights.stride(0) * weights.element_size()
    assert address == layers.stores[1].tensors["w13"][5].data_ptr()


def test_memory_that_cannot_be_locked_twice_falls_back_or_fails(layers, monkeypatch):
    class Refusing:
        """As if the limit on locked memory were reached."""

        def cudaHostRegister(self, *_: int) -> int:  # noqa: N802
            return 2

    monkeypatch.setattr(torch.cuda, "cudart", Refusing)
    with pytest.raises(HostMemoryError, match="ulimit"):
        HostRegion(1 << 20, alignment=4096, page_lock="require", device=layers.device)
    assert not HostRegion(1 << 20, alignment=4096, page_lock="auto", device=layers.device).page_locked
    assert float(torch.ones(3, device=layers.device).sum()) == 3.0
