"""Least stale: whatever a recent step used stays, and of the rest the earliest loaded goes."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from wisp.errors import ConfigError


class LeastStale:
    """Evicts what has gone stale first, each kind in the order of arrival; within one step the highest id.

    An expert is stale when none of the last `window` steps, the running one included, used it. While any
    evictable expert is stale the stale one that became resident the earliest goes; when none is, the fresh
    one that did. Recency thus decides only in or out, and arrival the order: with window 1, or with one
    longer than the trace, this is FIFO.

    The idea is Least-Stale of Hoang et al., "SpecMD" (arXiv 2602.03921), who keep one cache for all layers
    and call stale what the running forward pass has not used. A resident set serves one layer, for which a
    pass is a single step; the window of steps is what is left of a generation.
    """

    def __init__(self, window: int = 8) -> None:
        if window < 1:
            raise ConfigError(f"window={window}: an expert goes stale after 1 step or more")
        self._window = window
        self._now = 0
        self._last_use: dict[int, int] = {}
        self._arrival: dict[int, int] = {}

    def touch(self, step: Sequence[int]) -> None:
        """Note the use, and the arrival of what is new."""
        self._now += 1
        for expert in step:
            self._last_use[expert] = self._now
            self._arrival.setdefault(expert, self._now)

    def victim(self, evictable: AbstractSet[int]) -> int:
        """The least of (fresh, step of the arrival, -id)."""
        stale_until = self._now - self._window
        return min(evictable, key=lambda e: (self._last_use[e] > stale_until, self._arrival[e], -e))

    def forget(self, expert: int) -> None:
        """Drop both; when the expert returns it arrives anew."""
        del self._last_use[expert], self._arrival[expert]
