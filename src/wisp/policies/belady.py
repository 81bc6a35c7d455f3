"""Belady's MIN: the fewest faults that any policy can have, for one who knows the future."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from wisp.errors import ConfigError
from wisp.trace import Step


class Belady:
    """Evicts the expert whose next step is the farthest; of equals, as when none comes, the highest id.

    Optimal among all policies that load nothing ahead of its step, when no step is wider than the slots
    (Belady, "A study of replacement algorithms for a virtual-storage computer", 1966; the running step's
    experts are not evictable, which leaves the exchange argument as it is). It is a bound for replays: no
    online policy can be compared with it except on the trace that it was given.
    """

    def __init__(self, future: Sequence[Step]) -> None:
        """`future` holds every step that will be touched, in order."""
        self._future = future
        self._now = 0
        self._uses_last_first: dict[int, list[int]] = {}
        for index in range(len(future) - 1, -1, -1):
            for expert in future[index]:
                self._uses_last_first.setdefault(expert, []).append(index)

    def touch(self, step: Sequence[int]) -> None:
        """Advance by one step.

        Raises:
            ConfigError: this is not the step that the future announced. Nothing has changed.
        """
        if self._now >= len(self._future) or tuple(step) != tuple(self._future[self._now]):
            raise ConfigError(
                f"belady was given {len(self._future)} steps and step {self._now} is not the one announced; "
                f"replay exactly the trace that it was made for"
            )
        for expert in step:
            self._uses_last_first[expert].pop()
        self._now += 1

    def victim(self, evictable: AbstractSet[int]) -> int:
        """The greatest of (step of the next use, id)."""
        return max(evictable, key=lambda e: (self._next_use(e), e))

    def forget(self, expert: int) -> None:
        """Nothing to drop: the future does not depend on what is resident."""

    def _next_use(self, expert: int) -> int:
        uses = self._uses_last_first[expert]
        return uses[-1] if uses else len(self._future)
