"""Where the time of one prefill goes: copies to the device, kernels beside them, and what launches both."""

from itertools import pairwise

import torch
from measured_engine import first_token
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from vllm.v1.engine.llm_engine import LLMEngine

LEAST_COPY_NS = 20_000
"""Shorter copies to the device are no expert's."""


def prefill_profile(engine: LLMEngine, tokens: int) -> dict[str, float]:
    """Milliseconds of a prompt of `tokens`, profiled: profiling makes launching slower, not what is launched.

    `copying` is the union of the copies to the device (or of the planar arenas' copying kernels), `span` from the first
    one's start to the last one's end, `before` and `after` what lies outside of it, `computing` the union of the
    kernels; `longest_gaps` are the longest pauses between copies.
    """
    first_token(engine, tokens)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        [seconds] = first_token(engine, tokens, repeats=1)
        torch.cuda.synchronize()
    events = [
        (event.start_ns(), event.start_ns() + event.duration_ns(), event.name())
        for event in profiler.profiler.kineto_results.events()
        if event.device_type() == DeviceType.CUDA and event.duration_ns() > 0
    ]
    copies = [(a, b) for a, b, name in events if _copies(name) and b - a >= LEAST_COPY_NS]
    kernels = [(a, b) for a, b, name in events if not _copies(name) and not name.startswith("Mem")]
    merged = _union(copies)
    gaps = sorted((b[0] - a[1] for a, b in pairwise(merged)), reverse=True)
    figures = {
        "wall": seconds * 1e9,
        "copying": sum(b - a for a, b in merged),
        "span": merged[-1][1] - merged[0][0] if merged else 0,
        "computing": sum(b - a for a, b in _union(kernels)),
        "kernel_span": max(b for _, b in kernels) - min(a for a, _ in kernels),
        "before": merged[0][0] - min(a for a, *_ in events) if merged else 0,
        "after": max(b for _, b, _ in events) - merged[-1][1] if merged else 0,
    }
    report = {f"{name}_ms": round(ns / 1e6, 2) for name, ns in figures.items()}
    return report | {
        "copies": len(copies),
        "kernels": len(kernels),
        "gaps_ms": round(sum(gaps) / 1e6, 2),
        "gaps_over_100_us": sum(gap > 100_000 for gap in gaps),
        "longest_gaps_ms": [round(gap / 1e6, 2) for gap in gaps[:8]],
    }


def _copies(name: str) -> bool:
    return "HtoD" in name or "copy_experts" in name


def _union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same time in spans that do not touch, in order."""
    merged: list[tuple[int, int]] = []
    for a, b in sorted(spans):
        if merged and a <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(b, merged[-1][1])
        else:
            merged.append((a, b))
    return merged
