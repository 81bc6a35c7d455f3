"""The experts that the last steps needed, kept on the device and read now and then, without holding up a step."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from wisp.errors import ConfigError
from wisp.pager.side_copies import SideCopies

RING_STEPS = 4096
"""A few seconds of the fastest decoding; 3 MiB for 48 layers of 128 experts."""
_WORD_BITS = 32
_LEAST_WORDS = 4
"""Every layer's words start at a multiple of 16 bytes, so that one compiled kernel serves all layers."""


class RoutingRing:
    """`words` int32 [steps, layers, words]: bit sets, written by the kernels that page.

    A layer's step number s, counted from 1 by its clock, is at place (s - 1) % steps.
    """

    def __init__(self, layers: int, num_experts: int, device: torch.device, *, steps: int = RING_STEPS) -> None:
        """`ConfigError` unless `steps` is a power of two of 2 or more."""
        if steps < 2 or steps & (steps - 1):
            raise ConfigError(f"a ring of {steps} steps; give a power of two of 2 or more")
        self.steps, self.num_experts = steps, num_experts
        padded = 1 << (num_experts - 1).bit_length()  # as the kernels count experts
        words = max(_LEAST_WORDS, padded // _WORD_BITS)
        self.words = torch.zeros((steps, layers, words), dtype=torch.int32, device=device)
        self.era = 0
        """Grows when the clocks are set back to zero."""

    def start_over(self) -> None:
        """The clocks are at zero again: nothing of before is to be read."""
        self.era += 1


@dataclass(frozen=True)
class RoutedSteps:
    """Consecutive steps of all layers."""

    num_experts: int
    bits: NDArray[np.uint8]
    """[layers, steps, ceil(num_experts / 8)], as `RoutingTrace` takes them."""
    lost: int
    """Steps before them that were overwritten before they were read."""

    def memberships(self) -> Iterator[NDArray[np.bool_]]:
        """Step by step, bool [layers, num_experts]: whether the step required the expert."""
        for step in range(self.bits.shape[1]):
            yield np.unpackbits(self.bits[:, step], axis=1, count=self.num_experts).view(np.bool_)


class RingReader:
    """One reader's place in a ring; any number of them read the same ring, each from one thread at a time.

    It may run beside steps in another thread, but not while a graph is being captured: see `SideCopies`.
    """

    def __init__(self, ring: RoutingRing, totals: torch.Tensor) -> None:
        """Read from the first step on. `totals` int64 [layers, n], on the ring's device, begin with the clocks."""
        self._ring, self._totals = ring, totals
        self._on_gpu = ring.words.device.type == "cuda"
        self._copies = SideCopies(ring.words.device)
        self._host_words = torch.empty(ring.words.shape, dtype=torch.int32, pin_memory=self._on_gpu)
        self._host_totals = torch.empty(totals.shape, dtype=torch.int64, pin_memory=self._on_gpu)
        self._era, self._next = ring.era, 0

    def read(self, *, exactly: bool = False) -> RoutedSteps:
        """The steps since the last call.

        The newest step is left for the next call, since its kernels may still be writing. `exactly` waits for the
        device and takes it too; nothing may be launched meanwhile.
        """
        if exactly and self._on_gpu:
            torch.cuda.synchronize(self._ring.words.device)
        if self._era != self._ring.era:
            self._era, self._next = self._ring.era, 0
        slowest, _ = self._read_clocks()
        end = slowest if exactly else max(slowest - 1, self._next)
        first = max(self._next, end - self._ring.steps)
        self._copy_words(first, end)
        _, fastest = self._read_clocks()
        if self._era != self._ring.era:  # set back meanwhile: what was read belongs to the past
            return self.read(exactly=exactly)
        # the step after the fastest may be being written where one of a ring's length before it was
        whole = fastest - self._ring.steps + (0 if exactly else 1)
        first = min(max(first, whole), end)
        lost, self._next = first - self._next, end
        return RoutedSteps(self._ring.num_experts, self._bits(first, end), lost)

    def _read_clocks(self) -> tuple[int, int]:
        """Steps that every layer has done, and steps that some layer has done."""
        self._copies.fetch(self._host_totals, self._totals)
        clocks = self._host_totals[:, 0]
        return int(clocks.min()), int(clocks.max())

    def _copy_words(self, first: int, end: int) -> None:
        while first < end:
            place = first % self._ring.steps
            count = min(end - first, self._ring.steps - place)
            self._copies.fetch(self._host_words[place : place + count], self._ring.words[place : place + count])
            first += count

    def _bits(self, first: int, end: int) -> NDArray[np.uint8]:
        words = self._host_words.numpy()[np.arange(first, end) % self._ring.steps]
        row_bytes = -(-self._ring.num_experts // 8)
        return np.ascontiguousarray(words.view(np.uint8)[..., :row_bytes].transpose(1, 0, 2))
