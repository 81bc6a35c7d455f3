"""What paging a layer on the device costs, alone: with nothing missing, and with misses against the link.

python benchmarks/page_cost/run.py [--layers 8] [--variants 16x4,8x8] [--output results.json]

`--variants` compares programs x warps of a launch; the product's own come first. Nothing missing is measured alone and
behind a router's kernel, whose own time is taken off.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from router import Router

from wisp.engines.vllm.in_graph_paging import InGraphPaging
from wisp.pager import device
from wisp.pager.store import HostStore

EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 128, 8, 2048, 768
"""Of Qwen3-30B-A3B: 9 MiB an expert in bf16."""
REPEATS = 200


class Layers:
    """Page-locked experts of some layers, and their pagers."""

    def __init__(self, layers: int, slots: int) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        like = {
            "w13_weight": torch.empty(EXPERTS, 2 * INTERMEDIATE, HIDDEN, dtype=torch.bfloat16, device="meta"),
            "w2_weight": torch.empty(EXPERTS, HIDDEN, INTERMEDIATE, dtype=torch.bfloat16, device="meta"),
        }
        start = time.perf_counter()
        self.stores = [HostStore(like, page_lock="require", device=self.device) for _ in range(layers)]
        self.lock_seconds_per_gib = (time.perf_counter() - start) / (sum(s.nbytes for s in self.stores) / 2**30)
        self.paging = InGraphPaging(self.stores, slots, self.device)

    def page(self, ids: torch.Tensor, router: Router | None = None) -> None:
        """Each layer once, `ids` [layers, tokens, TOP_K]; behind the router's kernel if there is one."""
        for layer, (pager, chosen) in enumerate(zip(self.paging.pagers, ids, strict=True)):
            if router is not None:
                router.route(layer)
            pager.page(chosen)

    def behind_router_us(self, ids: torch.Tensor) -> float:
        """What paging adds to a router's kernel that chooses `ids`, all resident: microseconds a layer."""
        router = Router(ids, EXPERTS)

        def route() -> None:
            for layer in range(len(ids)):
                router.route(layer)

        alone = replay_us(capture(route))
        assert torch.equal(router.ids, ids)
        return (replay_us(capture(partial(self.page, router.ids, router))) - alone) / len(ids)

    def seconds(self, graph: torch.cuda.CUDAGraph, ids: torch.Tensor, steps: torch.Tensor) -> float:
        """Mean of a replay for each of `steps`, once the ids are there."""
        total = 0.0
        for step in steps:
            ids.copy_(step)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            total += start.elapsed_time(end) / 1e3
        return total / len(steps)


def capture(body: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A graph of what `body` launches."""
    body()  # compiles outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def distinct(tokens: int, layers: int, generator: torch.Generator) -> torch.Tensor:
    """int32 [layers, tokens, TOP_K]: ids of which none occurs twice, as far as there are experts."""
    chosen = [torch.randperm(EXPERTS, generator=generator)[: tokens * TOP_K] for _ in range(layers)]
    return torch.stack(chosen).view(layers, tokens, TOP_K).to(torch.int32)


def empty_launch_us(layers: int) -> float:
    """A graph of the smallest kernels there are, for comparison."""
    word = torch.zeros(1, device="cuda")

    def body() -> None:
        for _ in range(layers):
            word.zero_()

    return replay_us(capture(body)) / layers


def replay_us(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of a replay: the mean of many in a row, the least of three such means."""
    means = []
    for _ in range(3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(REPEATS):
            graph.replay()
        end.record()
        end.synchronize()
        means.append(start.elapsed_time(end) * 1e3 / REPEATS)
    return min(means)


def main() -> None:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--variants", default="")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.json")
    options = parser.parse_args()
    layers = Layers(options.layers, options.slots)
    rows = []
    own = f"{device.PROGRAMS}x{device.WARPS}"
    for variant in (own, *filter(None, options.variants.split(","))):
        device.PROGRAMS, device.WARPS = map(int, variant.split("x"))
        for row in measure(layers):
            rows.append({"variant": variant, **row})
            print(rows[-1], flush=True)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "layers": options.layers,
        "expert_slots": options.slots,
        "page_locking_s_per_gib": round(layers.lock_seconds_per_gib, 3),
        "empty_launch_us": round(empty_launch_us(options.layers), 2),
        "rows": rows,
    }
    print(json.dumps(result), flush=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")


def measure(layers: Layers) -> Iterator[dict[str, float]]:
    """A row for each number of tokens a step."""
    generator, count = torch.Generator().manual_seed(0), len(layers.stores)
    for tokens in (1, 2, 4, 8):
        ids = distinct(tokens, count, generator).cuda()
        graph = capture(partial(layers.page, ids))
        graph.replay()
        no_miss_us = replay_us(graph) / count
        behind_router_us = layers.behind_router_us(ids)
        moved = layers.paging.state.fields[:, 4].sum().item()
        steps = torch.stack([distinct(tokens, count, generator) for _ in range(20)]).cuda()
        seconds = layers.seconds(graph, ids, steps)
        moved = (layers.paging.state.fields[:, 4].sum().item() - moved) / len(steps)
        row_bytes = layers.stores[0].expert_bytes
        yield {
            "tokens": tokens,
            "no_miss_us_a_layer": round(no_miss_us, 2),
            "no_miss_behind_router_us_a_layer": round(behind_router_us, 2),
            "misses_a_layer": round(moved / count, 2),
            "gb_s_with_misses": round(moved * row_bytes / seconds / 1e9, 2),
        }


if __name__ == "__main__":
    main()
