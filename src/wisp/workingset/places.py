"""Stack depths from the places at which each name of a sequence stood before: a count of inversions, with numpy alone.

Number the references in time. If a name is referenced at t, in a step that begins at s, and was last at p before s,
then s - p - 1 references lie between, and each that returns to a name last referenced after p names no new one:

    depth(t) = s - p - 1 - #{u < s : p(u) > p(t)}

(Bennett and Kruskal, "LRU stack processing", 1975, count the same with a tree, for steps of one reference.)
"""

import numpy as np
from numpy.typing import NDArray

NEVER = np.iinfo(np.int64).max
"""The depth of a first reference."""


def previous_places(names: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each name was last before, -1 at its first place; and the last place of each name, ascending."""
    by_name = np.argsort(names)
    in_order = names[by_name]
    starts = np.concatenate([[True], in_order[1:] != in_order[:-1]])
    # argsort need not be stable: sort (group, place) once more, as one number
    group = np.cumsum(starts)
    places = np.sort(group << 32 | by_name) & (2**32 - 1)
    before = np.empty(len(names), dtype=np.int64)
    before[places[1:]] = np.where(starts[1:], -1, places[:-1])
    before[places[:1]] = -1
    latest = np.sort(places[np.concatenate([starts[1:], [True]])])
    return before, latest


def depths_before_step(before: NDArray[np.int64], start: NDArray[np.int64]) -> NDArray[np.int64]:
    """The depth of each reference in the stack before its step: 0 if the step has had the name, NEVER if it is new.

    Args:
        before: [references]: where each name was last, -1 at its first place.
        start: [references]: where the step of each begins; never falls.
    """
    depths = np.where(before >= start, 0, NEVER)
    again = np.flatnonzero(before >= 0)
    # within a step by ascending p, so that none of its own references counts
    again = again[np.argsort(start[again] * np.int64(len(before) + 1) + before[again])]
    last = before[again]
    deep = start[again] - last - 1 - greater_before(last)
    earlier = last < start[again]
    depths[again[earlier]] = deep[earlier]
    return depths


def greater_before(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of these distinct values, how many before it are greater.

    The values are ranked and split by one bit of the rank after the other, the highest first, order kept. Where the
    bit decides, a value without it comes after those before it in its group that have it.
    """
    count = len(values)
    bits = max(count - 1, 0).bit_length()
    rank = np.arange(1 << bits, dtype=np.int32)  # what is beyond `count` comes last and is greatest: it counts nowhere
    order = np.argsort(values)
    rank[order] = np.arange(count, dtype=np.int32)
    greater = np.zeros(1 << bits, dtype=np.int32)  # by rank
    groups = rank.copy()
    for bit in reversed(range(bits)):
        rows = groups.reshape(-1, 2 << bit)
        is_high = (rows >> bit & 1).astype(np.bool_)
        high_before = np.cumsum(is_high, axis=1, dtype=np.int32)
        low = rows[~is_high]
        greater[low] += high_before[~is_high]
        groups = np.stack([low.reshape(-1, 1 << bit), rows[is_high].reshape(-1, 1 << bit)], axis=1).reshape(-1)
    return greater[rank[:count]].astype(np.int64)
