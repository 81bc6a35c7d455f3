"""Stack depths from the places at which each name of a sequence stood before: a count of inversions, with numpy alone.

Number the references in time. If a name is referenced at t and was last at p, then t - p - 1 references lie between,
and each that returns to a name first referenced after p names no new one:

    depth(t) = t - p - 1 - #{u < t : p(u) > p(t)}

(Bennett and Kruskal, "LRU stack processing", 1975, count the same with a tree).
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


def stack_depths(before: NDArray[np.int64]) -> NDArray[np.int64]:
    """The depth of each reference from the place of the one before to the same block; huge at the first."""
    again = np.flatnonzero(before >= 0)
    last = before[again]
    depths = np.full(len(before), NEVER)
    depths[again] = again - last - 1 - greater_before(last)
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
