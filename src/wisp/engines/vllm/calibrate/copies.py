"""How fast bytes come out of page-locked host memory, by size, and how fast the device reads its own."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from wisp.allocator.measurement import CopyPoint
from wisp.pager.device_view import device_view

SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
_REPEATS, _ROWS = 5, 16
_LARGE_BYTES = 256 << 20


def copy_points(expert_bytes: int, device: torch.device) -> Iterator[CopyPoint]:
    """Sizes up to four experts: as copies, on a GPU by a kernel that reads host memory too; then experts in a row."""
    for nbytes in sorted({*SIZES, expert_bytes, 4 * expert_bytes}):
        source, target = _host(nbytes, device), torch.empty(nbytes, dtype=torch.uint8, device=device)
        yield CopyPoint(nbytes, _least_seconds(partial(target.copy_, source, non_blocking=True), device), "copy")
        if device.type == "cuda":
            words, view = target.view(torch.int32), device_view(source.view(torch.int32), device)
            yield CopyPoint(nbytes, _least_seconds(partial(torch.add, view, 0, out=words), device), "kernel")
    sources = _host(_ROWS * expert_bytes, device).view(_ROWS, expert_bytes)
    targets = torch.empty((_ROWS, expert_bytes), dtype=torch.uint8, device=device)

    def rows() -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source, non_blocking=True)

    yield CopyPoint(expert_bytes, _least_seconds(rows, device) / _ROWS, "rows")


def device_bytes_per_second(device: torch.device) -> float:
    """At which a kernel reads a tensor that no cache holds."""
    values = torch.ones(_LARGE_BYTES // 4, dtype=torch.float32, device=device)
    return _LARGE_BYTES / _least_seconds(values.sum, device)


def _host(nbytes: int, device: torch.device) -> torch.Tensor:
    """Written once, so that it is there."""
    return torch.ones(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


def _least_seconds(act: Callable[[], object], device: torch.device) -> float:
    """Of some runs, the first not counted."""
    seconds = []
    for _ in range(_REPEATS + 1):
        start = _now(device)
        act()
        seconds.append(_now(device) - start)
    return min(seconds[1:])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
