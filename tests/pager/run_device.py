"""Pages random and recorded routing on the "device", in Triton's interpreter, beside `ResidentSet`; says what differs.

python run_device.py RESULTS.json
"""

import json
import random
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import triton_interpreter  # noqa: F401, I001
import numpy as np
import torch
from file_store import write_store
from hypothesis import given, settings
from hypothesis import strategies as st

from wisp.errors import WispError
from wisp.pager.arena import Arena, ArenaShape
from wisp.pager.device import DevicePager
from wisp.pager.device_state import DeviceState
from wisp.pager.routing_histogram import RoutingHistogram
from wisp.pager.store import HostStore
from wisp.pager.stream import ExpertStream
from wisp.pager.stream_layout import StreamShape
from wisp.policies import make_policy
from wisp.recording import Recording
from wisp.resident import NOT_RESIDENT, ResidentSet
from wisp.trace import RoutingTrace
from wisp.workingset.curve import MissCurve
from wisp.workingset.histogram import ExpertHistogram

LAYERS, STEPS = 2, 12
SHAPES = ((16, 5, 4, 1), (16, 9, 4, 2), (12, 6, 3, 4), (20, 20, 4, 3), (16, 3, 4, 1), (16, 1, 4, 2), (36, 22, 8, 9))
"""(experts, slots, top-k, tokens a step): more experts in a step than slots or not, all in slots, ids of several chunks
and sets of several words."""
RECORDED = Path(__file__).parents[2] / "demo" / "traces" / "prose.npz"
RECORDED_STEPS, RECORDED_SLOTS = 32, 7
"""Of the demo model's decoding: four experts of 32 a step."""
STAGING = StreamShape(group_experts=3, groups=2)
WEIGHTS = {"w13": ((8, 6), torch.float32), "w2": ((6, 4), torch.float32)}
QUANTISED = {"w13": ((5, 16), torch.int32), "scale": ((), torch.float32), "w2": ((64, 300), torch.uint8)}
QUANTISED |= {"w2_scale": ((3,), torch.float32), "none": ((0,), torch.int32), "bias": ((6,), torch.bfloat16)}
"""name -> (an expert's shape, type): of whole 16 bytes and not, of one number and of none, of several copied blocks"""
IN_FILES = {"w13": ((4, 1301), torch.int32), "w2": ((64, 300), torch.uint8)}


class Layers:
    """Some layers paged on the device; where the arena does not reach a store there is room for every expert."""

    def __init__(self, experts: int, slots: int, tensors=WEIGHTS, *, planar: bool = False, folder=None) -> None:
        """With a `folder` the experts are in files there."""
        self.stores = []
        for _ in range(LAYERS):
            store = HostStore(
                {name: torch.empty(experts, *shape, dtype=dtype) for name, (shape, dtype) in tensors.items()}
            )
            store.rows.random_(0, 256)
            if folder is not None:
                store = write_store(store, Path(tempfile.mkstemp(dir=folder)[1]))
            self.stores.append(store)
        staging_rows = max(STAGING.rows, experts - 1 if planar or folder is not None else 0)
        size = STAGING.group_experts
        self.staging = StreamShape(size, staging_rows // size, whole=True) if planar else STAGING
        shape = ArenaShape(LAYERS, slots, staging_rows)
        self.arena = Arena(shape, self.stores[0].layout, "cpu", planar=planar, most_slots=slots)
        self.state = DeviceState(self.arena, self.stores)
        self.pagers = [
            DevicePager(layer, self.state, store, self.arena, link_bytes_per_second=1e9)
            for layer, store in enumerate(self.stores)
        ]

    def holds(self, layer: int, row: int, expert: int) -> bool:
        """Whether a kernel finds this expert at a row: of the arena, or of the store."""
        store = self.stores[layer]
        if self.arena.reaches(store):
            first = self.arena.direct_row(store)
            if first <= row < first + self.state.num_experts:
                return row - first == expert
        assert 0 <= row < self.arena.shape.rows
        return all(
            torch.equal(
                tensor[row].reshape(-1).view(torch.uint8), store.tensors[name][expert].reshape(-1).view(torch.uint8)
            )
            for name, tensor in self.arena.tensors.items()
        )


def same_curve(one: MissCurve, other: MissCurve) -> bool:
    """Whether two curves are equal in every number."""
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in vars(one))


def replay(
    experts: int,
    slots: int,
    top_k: int,
    tokens: int,
    tensors=WEIGHTS,
    *,
    planar: bool,
    folder=None,
    steps: int = STEPS,
    resizes: tuple[int, ...] = (),
    trace: RoutingTrace | None = None,
) -> dict[str, object]:
    """The device beside the host, step by step; every fourth step there are as many slots as `resizes` says next.

    Routing is that of a `trace`, with `top_k` experts in each of `tokens` rows, or else random.
    """
    layers = Layers(experts, slots, tensors, planar=planar, folder=folder)
    residents = [ResidentSet(experts, slots, make_policy("lru")) for _ in range(LAYERS)]
    wrong: list[str] = []
    faults, evictions, direct, over = [0] * LAYERS, [0] * LAYERS, 0, 0
    reader, needed, read = layers.state.routing(), [[] for _ in range(LAYERS)], []
    online = RoutingHistogram(layers.state.routing(), LAYERS, experts, half_life_steps=8)
    for step in range(steps):
        if resizes and step % 4 == 3:
            now, *_ = resizes = resizes[1:] + resizes[:1]
            layers.state.set_slots(now)
            for layer, resident in enumerate(residents):
                resident.resize(now)
                for expert, slot in resident.slot_of.items():
                    row = layers.arena.shape.slot_row(layer, slot)
                    if layers.state.row_of[layer, expert] != row or not layers.holds(layer, row, expert):
                        wrong.append(f"step {step}, layer {layer}: expert {expert} after a resize")
        for layer, (pager, resident) in enumerate(zip(layers.pagers, residents, strict=True)):
            drawn = [random.sample(range(experts), top_k) for _ in range(tokens)]
            drawn = drawn if trace is None else np.reshape(trace.layer(layer)[step], (tokens, top_k))
            ids = torch.tensor(drawn, dtype=torch.int32)
            if step % 3 == 0:  # as an engine pads a step to the size of a graph, and with ids that no expert has
                ids = torch.cat([ids, torch.tensor([[NOT_RESIDENT], [experts]], dtype=torch.int32).expand(2, top_k)])
            named = ids[(ids >= 0) & (ids < experts)].tolist()
            plan = resident.plan(named, direct=True)
            needed[layer].append(set(named))
            faults[layer] += plan.faults
            evictions[layer] += len(plan.evictions)
            direct += len(plan.direct)
            rows = pager.page(ids)
            if layers.state.slot_of[layer].tolist() != resident.slot_table().tolist():
                wrong.append(f"step {step}, layer {layer}: page table")
            for expert, row in zip(ids.flatten().tolist(), rows.tolist(), strict=True):
                if not 0 <= expert < experts:
                    wrong += [f"step {step}, layer {layer}: row of padding"] if row != NOT_RESIDENT else []
                elif not layers.holds(layer, row, expert):
                    wrong.append(f"step {step}, layer {layer}: bytes of expert {expert}")
            if pager.rows_of(ids.flatten()).tolist() != rows.tolist():
                wrong.append(f"step {step}, layer {layer}: rows of blocks")
            staging_rows = layers.arena.shape.staging_rows
            passing = {expert for expert in plan.direct if layers.state.row_of[layer, expert] < staging_rows}
            if len(passing) != min(len(plan.direct), staging_rows):
                wrong.append(f"step {step}, layer {layer}: {len(passing)} of {len(plan.direct)} in overflow rows")
            over += len(passing)
            others = set(range(experts)) - set(resident.slot_of) - set(plan.direct)
            homes = layers.state.home_row_of[layer]
            if any(layers.state.row_of[layer, expert] != homes[expert] for expert in others):
                wrong.append(f"step {step}, layer {layer}: rows of experts that were not needed")
        if step % 7 == 6:
            read.append(reader.read().bits)
            online.catch_up()
    layers.state.refresh_mirror()
    totals = [pager.totals() for pager in layers.pagers]
    read.append(reader.read(exactly=True).bits)
    online.catch_up(exactly=True)
    recorded = RoutingTrace.from_steps(experts, needed)
    offline = ExpertHistogram(LAYERS, experts, half_life_steps=8)
    for step in range(steps):
        offline.observe(np.stack([recorded.membership(layer)[step] for layer in range(LAYERS)]))
    return {
        "wrong": wrong,
        "routing": RoutingTrace(np.concatenate(read, axis=1), experts) == recorded,
        "curves": all(map(same_curve, online.curves(), offline.curves())),
        "direct": direct,
        "over": over,
        "contiguous": all(tensor.is_contiguous() for tensor in layers.arena.tensors.values()),
        "faults": [faults, [total["faults"] for total in totals]],
        "evictions": [evictions, [total["evictions"] for total in totals]],
        "steps": [total["steps"] for total in totals],
        "waves": [total["waves"] for total in totals],
    }


@given(
    tensors=st.dictionaries(
        st.sampled_from("abcdef"),
        st.tuples(
            st.lists(st.integers(1, 40), max_size=2).map(tuple),
            st.sampled_from([torch.int32, torch.float32, torch.int64]),
        ),
        min_size=1,
    ),
    slots=st.integers(1, 8),
    tokens=st.integers(1, 3),
)
@settings(max_examples=6, derandomize=True, deadline=None, database=None)
def replay_layout(tensors, slots: int, tokens: int) -> None:
    """A planar arena of any layout; fails at the first difference."""
    report = replay(8, slots, 3, tokens, tensors, planar=True, steps=4)
    assert report["wrong"] == []
    assert report["contiguous"]


def stream(slots: int, tensors, *, warm: bool, planar: bool, folder) -> dict[str, object]:
    """A prefill that needs every expert: what its waves hold, and what the page tables say before and after."""
    experts = 16
    layers = Layers(experts, slots, tensors, planar=planar, folder=folder)
    if warm:
        for pager in layers.pagers:
            pager.page(torch.arange(slots, dtype=torch.int32)[None])
    before = layers.state.slot_of.tolist()
    streaming = ExpertStream(layers.pagers, layers.state, layers.staging)
    ids = torch.cat([torch.arange(experts), torch.full((4,), NOT_RESIDENT)]).int().view(5, 4)
    seen: list[list[int]] = []
    ahead: list[int] = []
    wrong = 0
    for layer in range(LAYERS):
        computed: list[int] = []
        for row_of in streaming.waves(layer, ids):
            copied_ahead = streaming._step.issued - streaming._step.of_layer[layer].stop
            for expert, row in enumerate(row_of.tolist()):
                if row == NOT_RESIDENT:
                    continue
                computed.append(expert)
                wrong += not layers.holds(layer, row, expert)
        seen.append(sorted(computed))
        ahead.append(copied_ahead)
    for layer in range(LAYERS):
        for expert, slot in enumerate(layers.state.slot_of[layer].tolist()):
            wrong += slot >= 0 and not layers.holds(layer, layers.arena.shape.slot_row(layer, slot), expert)
    layers.state.refresh_mirror()
    return {
        "seen": seen,
        "ahead": ahead,
        "wrong": wrong,
        "before": before,
        "after": layers.state.slot_of.tolist(),
        "totals": [pager.totals() for pager in layers.pagers],
        "routing": layers.state.routing().read(exactly=True).bits.sum(axis=(0, 1)).tolist(),
    }


def leave_out(*turns: int) -> list[str]:
    """What a stream of two layers says when layers take these turns, one after the other."""
    layers = Layers(16, 5)
    streaming = ExpertStream(layers.pagers, layers.state, layers.staging)
    said = []
    for layer in turns:
        try:
            list(streaming.waves(layer, torch.arange(16, dtype=torch.int32).view(4, 4)))
        except WispError as error:
            said.append(str(error))
    return said


def main(results: str) -> None:
    """Run all cases."""
    random.seed(0)
    torch.manual_seed(0)
    replay_layout()
    with tempfile.TemporaryDirectory() as folder:
        report = {
            name: {
                "replays": [replay(*shape, tensors, planar=planar, folder=place, steps=steps) for shape in SHAPES],
                "resized": replay(
                    16,
                    12,
                    4,
                    2,
                    tensors,
                    planar=planar,
                    folder=place,
                    steps=2 * steps + 1,
                    resizes=(5, 3, 10, 1, 12, 7),  # from the second on: down, up, down
                ),
                "cold": stream(5, tensors, warm=False, planar=planar, folder=place),
                "warm": stream(5, tensors, warm=True, planar=planar, folder=place),
                "all": stream(16, tensors, warm=False, planar=planar, folder=place),
            }
            for name, planar, tensors, place, steps in (
                ("interleaved", False, WEIGHTS, None, STEPS),
                ("planar", True, QUANTISED, None, STEPS // 2),
                ("in files", False, IN_FILES, folder, STEPS // 2),
            )
        }
    recorded = Recording.load(RECORDED).phase("decode")
    report["recorded"] = replay(32, RECORDED_SLOTS, 4, 1, planar=False, steps=RECORDED_STEPS, trace=recorded)
    report["left out"] = [leave_out(*turns) for turns in ((0, 1, 0, 1), (1,), (0, 0, 0, 1))]
    Path(results).write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
