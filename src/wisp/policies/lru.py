"""Least recently used: the default, and the policy whose misses a miss curve predicts."""

from collections import OrderedDict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet


class LRU:
    """Evicts the expert whose last step is the longest ago; within one step the highest id.

    LRU is a stack algorithm: what C slots hold, C + 1 slots hold too. One pass over a trace therefore gives
    the faults of every capacity (Mattson et al., "Evaluation techniques for storage hierarchies", 1970);
    see `wisp.workingset`.
    """

    def __init__(self) -> None:
        self._oldest_first: OrderedDict[int, None] = OrderedDict()

    def touch(self, step: Sequence[int]) -> None:
        """Move the step to the newest end, its lowest id last."""
        order = self._oldest_first
        for expert in reversed(step):
            order[expert] = None
            order.move_to_end(expert)

    def victim(self, evictable: AbstractSet[int]) -> int:
        """The oldest evictable expert; what it passes over on the way is pinned, so it looks at few."""
        return next(expert for expert in self._oldest_first if expert in evictable)

    def forget(self, expert: int) -> None:
        """Take the expert out of the order."""
        del self._oldest_first[expert]
