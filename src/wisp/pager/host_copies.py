"""Copies within host memory by several threads, in the background, while a loader goes on reading its files."""

import ctypes
import os
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch

LEAST_BYTES = 256 << 10
"""What is smaller is copied sooner than handed over."""
PIECE_BYTES = 4 << 20
MOST_UNDER_WAY_BYTES = 256 << 20
"""Of sources that are held until they are copied: a loader may have read them into memory of its own."""


class HostCopies:
    """Copies under way. Until `wait` nothing may read a target, nor change a source."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: deque[tuple[Future[object], int]] = deque()
        self._under_way_bytes = 0
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        """Addresses of the targets, which do not overlap: in order, and where each ends."""

    def take(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        """Begin `target.copy_(source)`; False where that has to be called itself, and now may be.

        So it is for anything but the same bytes in the same order, for little, and where this thread has one processor.
        """
        workers = len(os.sched_getaffinity(0))
        pairs = list(_pairs(target, source)) if workers > 1 and _is_alike(target, source) else []
        if not all(_is_one_piece(part) for pair in pairs for part in pair):
            pairs = []
        if any(self._overlaps(part) for pair in pairs or [(target, source)] for part in pair):
            self.wait()  # what is written twice ends as what was written last
        if not pairs:
            return False
        self._pool = self._pool or ThreadPoolExecutor(min(16, workers), "wisp-host-copies")
        for part, its_source in pairs:
            insort(self._starts, part.data_ptr())
            self._ends[part.data_ptr()] = part.data_ptr() + part.nbytes
            for start in range(0, part.nbytes, PIECE_BYTES):
                self._begin(self._pool, part, its_source, start, min(PIECE_BYTES, part.nbytes - start))
        return True

    def wait(self) -> None:
        """Return once all that was taken is in its place."""
        while self._under_way:
            self._finish_oldest()
        self._starts.clear()
        self._ends.clear()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _overlaps(self, tensor: object) -> bool:
        """Whether a target may lie between the first byte of a tensor and its last."""
        if not self._starts or not isinstance(tensor, torch.Tensor) or not tensor.nbytes:
            return False
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        first, end = tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.itemsize
        after = bisect_left(self._starts, end)  # the first target that begins behind it
        return after > 0 and self._ends[self._starts[after - 1]] > first

    def _begin(
        self, pool: ThreadPoolExecutor, target: torch.Tensor, source: torch.Tensor, start: int, nbytes: int
    ) -> None:
        while self._under_way_bytes > MOST_UNDER_WAY_BYTES:
            self._finish_oldest()
        self._under_way.append((pool.submit(_copy, target, source, start, nbytes), nbytes))
        self._under_way_bytes += nbytes

    def _finish_oldest(self) -> None:
        copy, nbytes = self._under_way.popleft()
        self._under_way_bytes -= nbytes
        copy.result()


def _copy(target: torch.Tensor, source: torch.Tensor, start: int, nbytes: int) -> None:
    """Holds both tensors, and not the interpreter's lock."""
    ctypes.memmove(target.data_ptr() + start, source.data_ptr() + start, nbytes)


def _is_alike(target: torch.Tensor, source: object) -> bool:
    return (
        isinstance(source, torch.Tensor)
        and (target.shape, target.dtype, target.device, target.layout)
        == (source.shape, source.dtype, source.device, source.layout)
        and target.device.type == "cpu"
        and (target.is_neg(), target.is_conj()) == (source.is_neg(), source.is_conj())
        and target.nbytes >= LEAST_BYTES
    )


def _is_one_piece(part: torch.Tensor) -> bool:
    return part.nbytes >= LEAST_BYTES and part.is_contiguous()


def _pairs(target: torch.Tensor, source: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Both whole, or cut along their first dimension: experts lie apart from one another in a store."""
    if target.ndim < 2 or (target.is_contiguous() and source.is_contiguous()):
        return iter([(target, source)])
    return zip(target.unbind(), source.unbind(), strict=True)
