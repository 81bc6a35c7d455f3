"""Frequency class, then recency: experts used twice as often go later, whatever came last."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from wisp.errors import ConfigError


class LFRU:
    """Evicts from the lowest frequency class the least recently used; within one step the highest id.

    An expert's count is the number of steps that used it, resident or not; every `halve_every` steps all
    counts are halved, rounding down, so that an old favourite fades. Its class is the bit length of the
    count: 0, 1, 2-3, 4-7, 8-15, ... Counts survive an eviction: a layer has few experts, and one that is
    used often should not have to earn its class again.
    """

    def __init__(self, halve_every: int = 256) -> None:
        if halve_every < 1:
            raise ConfigError(f"halve_every={halve_every}: counts are halved after 1 step or more")
        self._halve_every = halve_every
        self._now = 0
        self._count: dict[int, int] = {}
        self._last_use: dict[int, int] = {}

    def touch(self, step: Sequence[int]) -> None:
        """Count one use of each, and halve all counts when it is time."""
        self._now += 1
        if self._now % self._halve_every == 0:
            self._count = {expert: count // 2 for expert, count in self._count.items()}
        for expert in step:
            self._count[expert] = self._count.get(expert, 0) + 1
            self._last_use[expert] = self._now

    def victim(self, evictable: AbstractSet[int]) -> int:
        """The least of (class, step of the last use, -id)."""
        return min(evictable, key=lambda e: (self._count[e].bit_length(), self._last_use[e], -e))

    def forget(self, expert: int) -> None:
        """Drop the expert's recency; its count stays."""
        del self._last_use[expert]
