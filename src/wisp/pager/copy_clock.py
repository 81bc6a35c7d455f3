"""How long copies took: by the clock on a CPU, by events on a GPU's stream."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class CopyClock:
    """Times regions of copies without waiting for them; `harvest` returns what has finished since."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds = 0.0
        self._open: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Everything issued to the current stream inside counts."""
        if not self._on_gpu:
            start_seconds = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - start_seconds
            return
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        yield
        end.record()
        self._open.append((start, end))

    def harvest(self) -> float:
        """Seconds of the regions that finished since the last call."""
        while self._open and self._open[0][1].query():  # type: ignore[no-untyped-call]
            start, end = self._open.popleft()
            self._seconds += start.elapsed_time(end) / 1000.0
        seconds, self._seconds = self._seconds, 0.0
        return seconds
