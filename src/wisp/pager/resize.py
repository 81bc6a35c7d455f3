"""Shrinking one layer's page table as a device keeps it, decided as `ResidentSet.resize` does with LRU."""

import numpy as np
from numpy.typing import NDArray

from wisp.resident import NOT_RESIDENT, Move, ResizePlan


def resized_table(slot_of: NDArray[np.int32], last_used: NDArray[np.int64], slots: int) -> ResizePlan:
    """Bring `slot_of` [experts] down to so many slots, in place, and say what was evicted and what moves.

    `last_used` [experts] is the step that referenced each expert last. Of one step the higher id goes first. Residents
    that filled the slots from the lowest up do so afterwards.
    """
    residents = np.flatnonzero(slot_of != NOT_RESIDENT)
    oldest_first = residents[np.lexsort((-residents, last_used[residents]))]
    evictions = oldest_first[: max(0, len(residents) - slots)]
    slot_of[evictions] = NOT_RESIDENT
    stranded = np.flatnonzero(slot_of >= slots)
    stranded = stranded[np.argsort(slot_of[stranded])]
    free = np.setdiff1d(np.arange(slots), slot_of)[: len(stranded)]
    moves = tuple(
        Move(*map(int, move)) for move in zip(stranded, slot_of[stranded].tolist(), free.tolist(), strict=True)
    )
    slot_of[stranded] = free
    return ResizePlan(tuple(evictions.tolist()), moves)
