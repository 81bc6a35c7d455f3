"""Stack distances of a routing trace, one LRU stack a layer (Mattson et al., 1970).

The distance of a reference, also called its reuse distance, is its depth in the stack *as it stood before
the step*: how many distinct experts lie above it. A step needs all its experts at once, so they are looked
up together and then move to the top together, the lowest id uppermost. Then C slots hold, before each step,
exactly the upper C of the stack, and a reference faults if and only if its depth is C or more, for every C
that can hold the widest step. (Counting reference by reference instead overcounts: see `wisp.resident`,
which never evicts an expert of the running step.)
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wisp.trace import RoutingTrace, Step

COLD = 2**31 - 1
"""The depth of a first reference: below the bottom of every stack, a miss whatever the capacity."""

_INT32_KEYS = 2**31
_ROWS = 2048  # steps sorted at once: about 1 MiB, which stays in the cache


class LRUStack:
    """The stack of one layer, step by step; the definition that `count_depths` computes in bulk."""

    def __init__(self) -> None:
        self._top_first: list[int] = []

    def push(self, step: Step) -> tuple[int, ...]:
        """The depth of each expert of the step, COLD at its first reference; then they move to the top."""
        depth_of = {expert: depth for depth, expert in enumerate(self._top_first)}
        members = set(step)
        self._top_first = [*step, *(expert for expert in self._top_first if expert not in members)]
        return tuple(depth_of.get(expert, COLD) for expert in step)


@dataclass(frozen=True, eq=False)
class DepthCounts:
    """How many references lie how deep, layer by layer."""

    warm: NDArray[np.int64]
    """[layers, num_experts]: references at each depth."""
    cold: NDArray[np.int64]
    """[layers]: first references."""


def count_depths(trace: RoutingTrace) -> DepthCounts:
    """Count the depths of every reference of the trace, in O(steps * N log N) a layer.

    For each step it sorts the experts by their last use before it. A reference carries a tag through the
    sort, so the place where the tag ends up is its depth.
    """
    warm = np.zeros((trace.layers, trace.num_experts), dtype=np.int64)
    cold = np.zeros(trace.layers, dtype=np.int64)
    for layer in range(trace.layers):
        warm[layer], cold[layer] = _count_layer(trace, layer)
    return DepthCounts(warm, cold)


def _count_layer(trace: RoutingTrace, layer: int) -> tuple[NDArray[np.int64], int]:
    experts, steps = trace.num_experts, trace.steps
    # A use is the key step * N + (N - id): later steps are greater, then lower ids; 0 is never used. int32
    # sorts twice as fast and, tagged in the lowest bit, suffices for 8 million steps of 128 experts.
    dtype = np.int32 if 2 * (steps + 1) * experts < _INT32_KEYS else np.int64
    place = np.arange(experts, 0, -1, dtype=dtype)
    last_use = np.zeros(experts, dtype=dtype)
    warm = np.zeros(experts, dtype=np.int64)
    for start in range(0, steps, _ROWS):
        member = trace.membership(layer, start, start + _ROWS)
        uses = np.zeros((len(member) + 1, experts), dtype=dtype)
        uses[0] = last_use
        step: NDArray[Any] = np.arange(start, start + len(member), dtype=dtype)[:, None]
        keys = step * experts + place
        np.multiply(keys, member, out=uses[1:])
        uses = np.maximum.accumulate(uses, axis=0)
        before, last_use = uses[:-1], uses[-1]
        reused = member & (before > 0)
        tagged = np.sort(before * 2 + reused, axis=1)
        warm += (tagged & 1).sum(axis=0)[::-1]
    return warm, int(np.count_nonzero(last_use))
