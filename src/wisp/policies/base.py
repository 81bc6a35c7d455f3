"""What a replacement policy owes the resident set.

A policy ranks the experts of one layer. It never sees a slot, a tensor or a byte, and it evicts nothing: it
answers who should go first, and is told what became of it. The resident set calls it in this order:

    touch(step)              once a step, before anything is evicted for it
    victim(evictable)        as often as the step lacks a slot; each answer is followed by
    forget(expert)           which is also called when an expert is dropped for another reason

Between steps the policy therefore knows exactly the resident experts. While a step wider than the slots is
served in waves it also knows experts of the step that are not resident yet; `evictable` never holds them.

Inside a step there is one canonical order, so that every replay of a trace decides alike: of two experts
that the policy finds equal the one with the lower id is the newer, and the higher id is evicted first.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol


class ReplacementPolicy(Protocol):
    """Ranks the experts of one layer; an object serves one resident set only."""

    def touch(self, step: Sequence[int]) -> None:
        """A step begins that references these experts (distinct, ascending, possibly none).

        Those it did not know become resident in this step.
        """

    def victim(self, evictable: AbstractSet[int]) -> int:
        """Which of these resident experts (at least one) to evict first; changes nothing."""

    def forget(self, expert: int) -> None:
        """The expert, which was resident, is no longer; a policy may still remember how often it was used."""
