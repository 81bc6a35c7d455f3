"""Where a worker's routing is read from: the sets of experts of each layer and forward pass, wherever it is decided."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wisp.pager.pager import ExpertPager
from wisp.resident import PagePlan

Bits = NDArray[np.uint8]
"""[layers, steps, ceil(experts / 8)], as in `RoutingTrace`."""


class RoutingSource(Protocol):
    """From its creation to `stop`; a step is a forward pass, of which every layer has had its part."""

    num_experts: int

    def ran(self) -> None:
        """A forward pass has been given to the device; where the host decides it has also been decided."""

    def take(self, *, wait: bool) -> Bits:
        """The steps since the last call, in order; unless told to `wait` for the device, those that have ended."""

    def stop(self) -> None:
        """Read nothing more; what was not taken is dropped."""


class HostRouting:
    """The plans of pagers that decide on the host; of several, the last one made is the first to stop."""

    def __init__(self, pagers: Sequence[ExpertPager]) -> None:
        self.num_experts = pagers[0].resident.num_experts
        self._pagers = pagers
        self._waves: list[list[tuple[int, ...]]] = [[] for _ in pagers]  # of the step that runs
        self._rows: list[NDArray[np.uint8]] = []
        self._before = [pager.observe for pager in pagers]
        for waves, pager in zip(self._waves, pagers, strict=True):
            pager.observe = partial(_keep, waves, pager.observe)

    def ran(self) -> None:
        """See `RoutingSource`. A step may have come in several plans, and a plan in several waves."""
        experts = [expert for waves in self._waves for wave in waves for expert in wave]
        sizes = [sum(map(len, waves)) for waves in self._waves]
        member = np.zeros((len(self._pagers), self.num_experts), dtype=np.bool_)
        member[np.repeat(np.arange(len(sizes)), sizes), np.array(experts, dtype=np.int64)] = True
        for waves in self._waves:
            waves.clear()
        self._rows.append(np.packbits(member, axis=1))

    def take(self, *, wait: bool) -> Bits:
        """See `RoutingSource`; there is nothing to wait for."""
        bits = np.zeros((len(self._pagers), len(self._rows), -(-self.num_experts // 8)), dtype=np.uint8)
        for step, row in enumerate(self._rows):
            bits[:, step] = row
        self._rows.clear()
        return bits

    def stop(self) -> None:
        """See `RoutingSource`."""
        for pager, before in zip(self._pagers, self._before, strict=True):
            pager.observe = before


def _keep(waves: list[tuple[int, ...]], before: Callable[[PagePlan], None] | None, plan: PagePlan) -> None:
    if before is not None:
        before(plan)
    waves.extend(wave.experts for wave in plan.waves)
