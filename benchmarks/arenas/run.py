"""What paging itself costs on a GPU, launch by launch, without a model; writes results.json.

Run: python benchmarks/arenas/run.py --machine "one H200, PCIe 5 x16"
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch

import wisp
from wisp.pager.arena import Arena, ArenaShape
from wisp.pager.device import DevicePager
from wisp.pager.device_state import DeviceState
from wisp.pager.store import HostStore

LAYERS, EXPERTS, TOP_K, SLOTS = 4, 64, 8, 16
PASSES = 10
"""A captured graph holds so many steps of all layers: whole circles of the two and the five steps below."""
HIDDEN, INNER, GROUP = 2048, 768, 128

Tensors = dict[str, tuple[tuple[int, ...], torch.dtype]]
FORMATS: dict[str, Tensors] = {
    "bf16": {"w13": ((2 * INNER, HIDDEN), torch.bfloat16), "w2": ((HIDDEN, INNER), torch.bfloat16)},
    "int4": {
        "w13": ((HIDDEN // 16, 4 * INNER), torch.int32),
        "w2": ((INNER // 16, 2 * HIDDEN), torch.int32),
        "w13_scale": ((HIDDEN // GROUP, 2 * INNER), torch.bfloat16),
        "w2_scale": ((INNER // GROUP, HIDDEN), torch.bfloat16),
    },
    "fp8": {
        "w13": ((2 * INNER, HIDDEN), torch.uint8),
        "w2": ((HIDDEN, INNER), torch.uint8),
        "w13_scale": ((), torch.float32),
        "w2_scale": ((), torch.float32),
    },
}
"""The expert of Qwen3-30B-A3B: as in the checkpoint; in Marlin's order, scaled by group; scaled by tensor."""


class Layers:
    """Some layers on the device, with page-locked stores."""

    def __init__(self, tensors: Tensors, *, planar: bool) -> None:
        self.device = torch.device("cuda")
        like = {
            name: torch.empty(EXPERTS, *shape, dtype=dtype, device="meta") for name, (shape, dtype) in tensors.items()
        }
        self.stores = [HostStore(like, page_lock="require", device=self.device) for _ in range(LAYERS)]
        shape = ArenaShape(LAYERS, SLOTS, EXPERTS)
        self.arena = Arena(shape, self.stores[0].layout, self.device, planar=planar, most_slots=EXPERTS)
        self.state = DeviceState(self.arena, self.stores)
        self.pagers = [
            DevicePager(layer, self.state, store, self.arena, link_bytes_per_second=1.0)
            for layer, store in enumerate(self.stores)
        ]

    def launch_seconds(self, steps: list[list[int]]) -> float:
        """Of one launch, over a graph whose passes take these steps in turn; the best of some replays."""
        ids = [torch.tensor([step], dtype=torch.int32, device=self.device) for step in steps]

        def passes() -> None:
            for number in range(PASSES):
                for pager in self.pagers:
                    pager.page(ids[number % len(ids)])

        passes()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            passes()
        return best_seconds(graph.replay, 20) / (PASSES * LAYERS)


def best_seconds(act: Callable[[], object], repeats: int) -> float:
    """The shortest of some runs, each until the device is done."""
    seconds = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        act()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure(tensors: Tensors, *, planar: bool) -> dict[str, object]:
    """One format in one kind of arena."""
    layers = Layers(tensors, planar=planar)
    expert_bytes, state = layers.stores[0].expert_bytes, layers.state
    # two steps that share no expert fit together, so that nothing is missing after the first of each
    resident = layers.launch_seconds([list(range(TOP_K)), list(range(TOP_K, 2 * TOP_K))])
    # five disjoint steps, used in a circle, do not: LRU misses every time
    missing = layers.launch_seconds([list(range(at, at + TOP_K)) for at in range(0, 5 * TOP_K, TOP_K)])
    state.set_slots(TOP_K // 2)
    half = layers.launch_seconds([list(range(at, at + TOP_K)) for at in range(0, 5 * TOP_K, TOP_K)])
    reader = state.routing()
    resizes = {}
    for slots in (EXPERTS, SLOTS, EXPERTS, SLOTS):
        start = time.perf_counter()
        state.set_slots(slots)
        torch.cuda.synchronize()
        resizes[f"to_{slots}"] = round((time.perf_counter() - start) * 1e3, 2)
    start = time.perf_counter()
    routed = reader.read(exactly=True)
    read_seconds = time.perf_counter() - start
    copied = TOP_K if planar else TOP_K // 2
    return {
        "planar": planar,
        "expert_mib": round(expert_bytes / 2**20, 3),
        "us_a_launch_without_misses": round(resident * 1e6, 2),
        "us_a_miss": round(missing / TOP_K * 1e6, 1),
        "link_gb_s": round(expert_bytes * TOP_K / missing / 1e9, 1),
        "link_gb_s_with_half_beyond_the_slots": round(expert_bytes * copied / half / 1e9, 1),
        "resize_ms": resizes,
        "ring_read_ms": round(read_seconds * 1e3, 2),
        "ring_steps_read": routed.bits.shape[1],
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", required=True, help="the kind of machine in words")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    arguments = parser.parse_args()
    cases = [("bf16", False), ("bf16", True), ("int4", True), ("fp8", False), ("fp8", True)]
    results = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": arguments.machine,
        "versions": {"wisp": wisp.__version__, "python": platform.python_version(), "torch": torch.__version__},
        "rows": [{"format": name, **measure(FORMATS[name], planar=planar)} for name, planar in cases],
    }
    text = json.dumps(results, indent=2)
    arguments.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
