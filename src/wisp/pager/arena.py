"""Device memory for the slots of all layers, in units of one expert."""

import time
from dataclasses import dataclass

import torch

from wisp.errors import UnsupportedError
from wisp.pager.pool import check_device_room
from wisp.pager.store import TENSOR_ALIGNMENT, HostStore, RowLayout
from wisp.resident import NOT_RESIDENT

WORD_BYTES = 4
"""The device copies whole words."""
WIDE_BYTES = 16
"""And four of them at once where a tensor has so many in each expert."""


@dataclass(frozen=True)
class ArenaShape:
    """`staging_rows` through which experts pass, then `slots` experts of each of `layers` layers.

    What passes are the experts of a stream and, in a planar arena, those of a step that find no slot (its overflow).
    """

    layers: int
    slots: int
    staging_rows: int

    @property
    def rows(self) -> int:
        """Rows in all."""
        return self.staging_rows + self.layers * self.slots

    def slot_row(self, layer: int, slot: int) -> int:
        """Row of a slot: slot-major, so that one more slot in every layer is a piece at the end."""
        return self.staging_rows + slot * self.layers + layer

    def staging_row(self, place: int) -> int:
        """Row of a place in the staging area."""
        return place


@dataclass(frozen=True)
class Segments:
    """How an expert's row of a store is spread over the regions of a planar arena."""

    table: torch.Tensor
    """int64 [segments, 3]: the first word of the row, how many, and the address of the region's row 0."""
    wide: int
    """The first so many are copied 16 bytes at a time."""

    def __len__(self) -> int:
        return self.table.shape[0]


class Arena:
    """`tensors[name]` is [shape.rows, ...], what the engine's kernel takes in place of all experts.

    Interleaved, an expert is one row: all its tensors together, from an address that is a multiple of `row_bytes`.
    Backing stores start at such multiples too, so an expert of a store is a whole number of rows away: one index
    reaches either memory, and an engine's kernel can take an expert from its slot or from where it lies.

    Planar, each tensor is contiguous, for kernels that take no stride between experts. No index reaches the store
    then: what a step needs has to be in the arena.
    """

    def __init__(
        self, shape: ArenaShape, layout: RowLayout, device: torch.device | str, *, planar: bool = False
    ) -> None:
        """Take the memory, zeroed.

        Raises:
            ConfigError: the device has too little. UnsupportedError: a planar tensor is no whole number of words.
        """
        self.shape, self.layout, self.planar = shape, layout, planar
        self.device = torch.device(device)
        if planar:
            _check_words(layout)
        sizes = [part.nbytes for part in layout.parts] if planar else [layout.row_bytes]
        alignment = TENSOR_ALIGNMENT if planar else layout.row_bytes
        what = f"{shape.slots} slots in each of {shape.layers} layers"
        check_device_room(sum(shape.rows * nbytes + alignment for nbytes in sizes), self.device, what)
        regions = [_aligned(shape.rows * nbytes, alignment, self.device) for nbytes in sizes]
        if planar:
            self.tensors = {
                part.name: region.view(part.dtype).view(shape.rows, *part.shape)
                for part, region in zip(layout.parts, regions, strict=True)
            }
        else:
            self._rows = regions[0].view(shape.rows, layout.row_bytes)
            self.tensors = layout.views(self._rows)
        self.segments = self._spread() if planar else None
        """How a planar arena is filled."""

    @property
    def rows(self) -> torch.Tensor:
        """uint8 [shape.rows, row_bytes]; of an interleaved arena only."""
        assert not self.planar, "the tensors of an expert are apart in a planar arena"
        return self._rows

    def direct_row(self, store: HostStore) -> int:
        """The row of the store's expert 0; of an interleaved arena only."""
        distance = store.rows.data_ptr() - self.rows.data_ptr()
        assert distance % self.layout.row_bytes == 0, "stores and arena start at multiples of a row"
        return distance // self.layout.row_bytes

    def home_rows(self, store: HostStore) -> torch.Tensor:
        """int64 [experts]: where the kernel finds an expert without a slot; NOT_RESIDENT in a planar arena."""
        if self.planar:
            return torch.full((store.num_experts,), NOT_RESIDENT, dtype=torch.int64)
        return self.direct_row(store) + torch.arange(store.num_experts, dtype=torch.int64)

    def _spread(self) -> Segments:
        parts = [part for part in self.layout.parts if part.nbytes]
        parts.sort(key=lambda part: part.nbytes % WIDE_BYTES != 0)
        table = [
            (part.start // WORD_BYTES, part.nbytes // WORD_BYTES, self.tensors[part.name].data_ptr()) for part in parts
        ]
        wide = sum(part.nbytes % WIDE_BYTES == 0 for part in parts)
        return Segments(torch.tensor(table, dtype=torch.int64).to(self.device), wide)

    def link_bytes_per_second(self, store: HostStore, *, repeats: int = 4) -> float:
        """How fast the store's bytes come into the arena: the best of some copies of the largest piece of an expert."""
        source, target = store.rows[0], None if self.planar else self.rows[0]
        if target is None:
            name = max(self.layout.parts, key=lambda part: part.nbytes).name
            source, target = store.tensors[name][0], self.tensors[name][0]
        seconds = []
        for _ in range(repeats):
            start = _now(self.device)
            target.copy_(source, non_blocking=True)
            seconds.append(_now(self.device) - start)
        return source.nbytes / min(seconds)


def _check_words(layout: RowLayout) -> None:
    for part in layout.parts:
        if part.nbytes % WORD_BYTES:
            raise UnsupportedError(
                f"{part.name} takes {part.nbytes} bytes of an expert, and the device copies contiguous tensors in "
                f"words of {WORD_BYTES}; set decide to host and add --enforce-eager"
            )


def _aligned(nbytes: int, alignment: int, device: torch.device) -> torch.Tensor:
    """Zeroed uint8 [nbytes] from an address that is a multiple of `alignment`."""
    whole = torch.zeros(nbytes + alignment, dtype=torch.uint8, device=device)
    start = -whole.data_ptr() % alignment
    return whole[start : start + nbytes]


def _now(device: torch.device) -> float:
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
