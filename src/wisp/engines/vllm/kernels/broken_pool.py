"""A pool that loads wrong experts on purpose: the negative control of every check for identical output."""

from wisp.pager.pool import SlotPool


class BrokenPool(SlotPool):
    """Puts the bytes of the next expert into the slot of every fourth load, starting with the first."""

    _loads = 0

    def load(self, expert: int, slot: int) -> None:
        """As in `SlotPool`, but for the fault."""
        if self._loads % 4 == 0:
            expert = (expert + 1) % self.num_experts
        self._loads += 1
        super().load(expert, slot)
