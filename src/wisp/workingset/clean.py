"""With how many slots a step has no miss at all: such a step waits for no copy."""

import numpy as np
from numpy.typing import NDArray

from wisp.trace import RoutingTrace
from wisp.workingset.stack import COLD

_ROWS = 2048  # steps at once: about 1 MiB, which stays in the cache


def slots_without_miss(trace: RoutingTrace) -> NDArray[np.int64]:
    """int64 [layers, steps]: the fewest LRU slots with which the step misses nothing in the layer.

    That is one more than the depth of its deepest reference; 0 if it has none, COLD if one is a first reference.
    """
    return np.array([_layer(trace, layer) for layer in range(trace.layers)], dtype=np.int64).reshape(
        trace.layers, trace.steps
    )


def clean_share(slots_needed: NDArray[np.int64], slots: int) -> float:
    """The share of steps that miss nothing in any layer, with this many slots in each; 0 if there is no step."""
    return float(np.mean(slots_needed.max(axis=0) <= slots)) if slots_needed.size else 0.0


def _layer(trace: RoutingTrace, layer: int) -> NDArray[np.int64]:
    experts = trace.num_experts
    place = np.arange(experts, 0, -1)
    last_use = np.zeros(experts, dtype=np.int64)  # as in `stack`: step * N + (N - id), 0 = never
    needed = np.zeros(trace.steps, dtype=np.int64)
    for start in range(0, trace.steps, _ROWS):
        member = trace.membership(layer, start, start + _ROWS)
        uses = np.zeros((len(member) + 1, experts), dtype=np.int64)
        uses[0] = last_use
        uses[1:] = (np.arange(start, start + len(member))[:, None] * experts + place) * member
        uses = np.maximum.accumulate(uses, axis=0)
        before, last_use = uses[:-1], uses[-1]
        oldest = np.where(member, before, np.iinfo(np.int64).max).min(axis=1)
        above = np.count_nonzero(before > oldest[:, None], axis=1)
        slots = np.where(oldest == 0, COLD, above + 1)
        needed[start : start + len(member)] = np.where(member.any(axis=1), slots, 0)
    return needed
