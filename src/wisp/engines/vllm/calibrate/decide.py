"""What paging takes a layer whose experts are all resident."""

import time
from typing import Any

import torch

_REPEATS = 200


def decide_seconds(layer: Any, experts: list[int]) -> float:
    """Of one step of a running engine's layer, on average, beside its kernel; `experts` are resident afterwards.

    Where the device decides, launches are timed behind one another, inside a CUDA graph.
    """
    in_graph = layer.in_graph_pager
    if in_graph is not None:
        ids = torch.tensor([experts], dtype=torch.int32, device=in_graph.arena.device)
        return _in_a_graph(lambda: in_graph.page(ids))
    pager = layer.pager

    def step() -> None:
        for wave in pager.step(experts):
            pager.slots_of(wave)

    step()
    start = time.perf_counter()
    for _ in range(_REPEATS):
        step()
    return (time.perf_counter() - start) / _REPEATS


def _in_a_graph(page: Any) -> float:
    page()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_REPEATS):
            page()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / _REPEATS
