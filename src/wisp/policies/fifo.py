"""First in, first out: the baseline that ignores every use after the load."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet


class FIFO:
    """Evicts the expert that became resident in the earliest step; within one step the highest id."""

    def __init__(self) -> None:
        self._earliest_first: dict[int, None] = {}

    def touch(self, step: Sequence[int]) -> None:
        """Append what is new, the lowest id last; a use changes nothing."""
        for expert in reversed(step):
            self._earliest_first.setdefault(expert)

    def victim(self, evictable: AbstractSet[int]) -> int:
        """The evictable expert that arrived first."""
        return next(expert for expert in self._earliest_first if expert in evictable)

    def forget(self, expert: int) -> None:
        """Take the expert out of the queue; when it returns it is the newest again."""
        del self._earliest_first[expert]
