"""Who goes where in a streamed step: which experts are copied together, to which rows, and what kernels find where.

The device has nothing to do while this is worked out, so it is done in arrays.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wisp.pager.arena import ArenaShape
from wisp.resident import NOT_RESIDENT

_Integers = NDArray[np.integer]


@dataclass(frozen=True)
class StreamShape:
    """`groups` of `group_experts` rows make the staging area; copies run at most `groups` groups ahead."""

    group_experts: int
    groups: int
    whole: bool = False
    """A layer is computed in one piece: there are rows for all of its experts without a slot."""

    @property
    def rows(self) -> int:
        """Staging rows in all."""
        return self.group_experts * self.groups


@dataclass(frozen=True)
class Group:
    """Experts of one layer that are copied together."""

    layer: int
    experts: list[int]
    rows: list[int]
    """Of the arena, one an expert."""
    before: int | None
    """The group in whose staging rows it is copied, once that has been computed; None where nobody needs the rows."""


@dataclass(frozen=True, eq=False)
class StreamLayout:
    """Everything that one step streams, in the order of copying: layer by layer, first what fills its free slots."""

    groups: list[Group]
    of_layer: list[range]
    """The groups of each layer."""
    row_of: _Integers
    """[groups, experts]: the row of each expert of a group, -1 for others; of whole layers [layers, experts]."""
    pairs: _Integers
    """[groups, 2, experts of a group]: which expert goes to which row; padded."""
    filled_slot_of: _Integers
    filled_row_of: _Integers
    """The page tables once the free slots are filled: [layers, experts]."""


def lay_out(arena: ArenaShape, shape: StreamShape, slots: int, slot_of: _Integers, row_of: _Integers) -> StreamLayout:
    """Lay out a step that needs every expert, by page tables of [layers, experts]; residents are in the first slots."""
    slot_of, row_of, size = slot_of.copy(), row_of.copy(), shape.group_experts
    groups: list[Group] = []
    of_layer: list[range] = []
    staged: list[int] = []
    all_experts: list[_Integers] = []
    all_rows: list[_Integers] = []
    for layer, (layer_slots, layer_rows) in enumerate(zip(slot_of, row_of, strict=True)):
        missing = np.flatnonzero(layer_slots < 0)
        free = np.arange(len(layer_slots) - len(missing), slots)[: len(missing)]
        fills, passing = missing[: len(free)], np.arange(len(missing) - len(free))
        layer_slots[fills], layer_rows[fills] = free, arena.slot_row(layer, 0) + free * arena.layers
        staging = (len(staged) + passing // size) % shape.groups * size + passing % size
        rows = np.concatenate([layer_rows[fills], staging])
        start, experts_there, rows_there = len(groups), missing.tolist(), rows.tolist()
        for first, end in _cuts(0, len(fills), size):
            groups.append(Group(layer, experts_there[first:end], rows_there[first:end], None))
        for first, end in _cuts(len(fills), len(missing), size):
            before = staged[-shape.groups] if len(staged) >= shape.groups else None
            staged.append(len(groups))
            groups.append(Group(layer, experts_there[first:end], rows_there[first:end], before))
        of_layer.append(range(start, len(groups)))
        all_experts.append(missing)
        all_rows.append(rows)
    sizes = np.array([len(group.experts) for group in groups], dtype=np.int64)
    group = np.repeat(np.arange(len(groups)), sizes)
    place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    experts, rows = np.concatenate(all_experts), np.concatenate(all_rows)
    pairs = np.zeros((len(groups), 2, size + size % 2), dtype=np.int64)  # aligned alike in every group
    pairs[group, 0, place], pairs[group, 1, place] = experts, rows
    if shape.whole:
        tables = np.where(slot_of >= 0, row_of, NOT_RESIDENT)
        tables[np.repeat(np.arange(len(slot_of)), [len(each) for each in all_experts]), experts] = rows
    else:
        tables = np.full((len(groups), slot_of.shape[1]), NOT_RESIDENT)
        tables[group, experts] = rows
    return StreamLayout(groups, of_layer, tables.astype(np.int64), pairs, slot_of, row_of)


def _cuts(start: int, end: int, size: int) -> list[tuple[int, int]]:
    return [(first, min(first + size, end)) for first in range(start, end, size)]
