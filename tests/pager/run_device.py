"""Pages random routing on the "device", in Triton's interpreter, beside `ResidentSet`; writes down what differs.

python run_device.py RESULTS.json
"""

import json
import os
import random
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch

from wisp.pager.arena import Arena, ArenaShape
from wisp.pager.device import DevicePager, DeviceState
from wisp.pager.store import HostStore
from wisp.pager.stream import ExpertStream, StreamShape
from wisp.policies import make_policy
from wisp.resident import NOT_RESIDENT, ResidentSet

LAYERS, STEPS = 2, 30
SHAPES = ((16, 5, 4, 1), (16, 9, 4, 2), (12, 6, 3, 4), (20, 20, 4, 3), (16, 3, 4, 1), (16, 1, 4, 2))
"""(experts, slots, top-k, tokens a step); the last three have more experts in a step than slots, or all in slots."""
STAGING = StreamShape(group_experts=3, groups=2)


class Layers:
    """Some layers paged on the device."""

    def __init__(self, experts: int, slots: int) -> None:
        self.stores = []
        for _ in range(LAYERS):
            store = HostStore({"w13": torch.empty(experts, 8, 6), "w2": torch.empty(experts, 6, 4)})
            for tensor in store.tensors.values():
                tensor.copy_(torch.randn(tensor.shape))
            self.stores.append(store)
        self.arena = Arena(ArenaShape(LAYERS, slots, STAGING.rows), self.stores[0].layout, "cpu")
        direct = [self.arena.direct_row(store) for store in self.stores]
        self.state = DeviceState(experts, direct, torch.device("cpu"))
        self.pagers = [
            DevicePager(layer, self.state, store, self.arena, link_bytes_per_second=1e9)
            for layer, store in enumerate(self.stores)
        ]

    def bytes_at(self, layer: int, row: int) -> torch.Tensor:
        """What a kernel finds at a row: of the arena, or of the store."""
        first = self.arena.direct_row(self.stores[layer])
        if first <= row < first + self.state.num_experts:
            return self.stores[layer].rows[row - first]
        assert 0 <= row < self.arena.shape.rows
        return self.arena.rows[row]


def replay(experts: int, slots: int, top_k: int, tokens: int) -> dict[str, object]:
    """The device beside the host, step by step."""
    layers = Layers(experts, slots)
    residents = [ResidentSet(experts, slots, make_policy("lru")) for _ in range(LAYERS)]
    wrong: list[str] = []
    faults, evictions, direct = [0] * LAYERS, [0] * LAYERS, 0
    for step in range(STEPS):
        for layer, (pager, resident) in enumerate(zip(layers.pagers, residents, strict=True)):
            ids = torch.tensor([random.sample(range(experts), top_k) for _ in range(tokens)], dtype=torch.int32)
            if step % 3 == 0:  # as an engine pads a step to the size of a graph
                ids = torch.cat([ids, torch.full((2, top_k), NOT_RESIDENT, dtype=torch.int32)])
            plan = resident.plan(ids[ids >= 0].tolist(), direct=True)
            faults[layer] += plan.faults
            evictions[layer] += len(plan.evictions)
            direct += len(plan.direct)
            rows = pager.page(ids)
            if layers.state.slot_of[layer].tolist() != resident.slot_table().tolist():
                wrong.append(f"step {step}, layer {layer}: page table")
            for expert, row in zip(ids.flatten().tolist(), rows.tolist(), strict=True):
                if expert < 0:
                    wrong += [f"step {step}, layer {layer}: row of padding"] if row != NOT_RESIDENT else []
                elif not torch.equal(layers.bytes_at(layer, row), layers.stores[layer].rows[expert]):
                    wrong.append(f"step {step}, layer {layer}: bytes of expert {expert}")
            if pager.rows_of(ids.flatten()).tolist() != rows.tolist():
                wrong.append(f"step {step}, layer {layer}: rows of blocks")
    layers.state.refresh_mirror()
    totals = [pager.totals() for pager in layers.pagers]
    return {
        "wrong": wrong,
        "direct": direct,
        "faults": [faults, [total["faults"] for total in totals]],
        "evictions": [evictions, [total["evictions"] for total in totals]],
        "steps": [total["steps"] for total in totals],
        "waves": [total["waves"] for total in totals],
    }


def stream(slots: int, *, warm: bool) -> dict[str, object]:
    """A prefill that needs every expert: what its waves hold, and what the page tables say before and after."""
    experts = 16
    layers = Layers(experts, slots)
    if warm:
        for pager in layers.pagers:
            pager.page(torch.arange(slots, dtype=torch.int32)[None])
    before = layers.state.slot_of.tolist()
    streaming = ExpertStream(layers.pagers, layers.state, STAGING)
    ids = torch.cat([torch.arange(experts), torch.full((4,), NOT_RESIDENT)]).int().view(5, 4)
    seen: list[list[int]] = []
    wrong = 0
    for layer in range(LAYERS):
        computed: list[int] = []
        for row_of in streaming.waves(layer, ids):
            for expert, row in enumerate(row_of.tolist()):
                if row == NOT_RESIDENT:
                    continue
                computed.append(expert)
                wrong += not torch.equal(layers.bytes_at(layer, row), layers.stores[layer].rows[expert])
        seen.append(sorted(computed))
    for layer, store in enumerate(layers.stores):
        for expert, slot in enumerate(layers.state.slot_of[layer].tolist()):
            if slot >= 0:
                wrong += not torch.equal(
                    layers.arena.rows[layers.arena.shape.slot_row(layer, slot)], store.rows[expert]
                )
    layers.state.refresh_mirror()
    return {
        "seen": seen,
        "wrong": wrong,
        "before": before,
        "after": layers.state.slot_of.tolist(),
        "totals": [pager.totals() for pager in layers.pagers],
    }


def main(results: str) -> None:
    """Run all cases."""
    random.seed(0)
    torch.manual_seed(0)
    report = {
        "replays": [replay(*shape) for shape in SHAPES],
        "cold": stream(5, warm=False),
        "warm": stream(5, warm=True),
        "all": stream(16, warm=False),
    }
    Path(results).write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
