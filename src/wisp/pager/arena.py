"""Device memory for the slots of all layers, in units of one expert."""

import time
from dataclasses import dataclass, replace

import torch

from wisp.errors import UnsupportedError, WispError
from wisp.pager.device_memory import DeviceMemory
from wisp.pager.pool import check_device_room
from wisp.pager.store import TENSOR_ALIGNMENT, ExpertStore, RowLayout
from wisp.resident import NOT_RESIDENT

WORD_BYTES = 4
"""The device copies whole words."""


@dataclass(frozen=True)
class ArenaShape:
    """`staging_rows` through which experts pass, then `slots` experts of each of `layers` layers.

    What passes are the experts of a stream, and those of a step that find no slot (its overflow).
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


class Arena:
    """`tensors[name]` is [rows, ...], what the engine's kernel takes in place of all experts.

    There are as many rows as the arena can ever have; only the first `shape.rows` may be used.

    Interleaved, an expert is one row: all its tensors together, from an address that is a multiple of `row_bytes`.
    Where the experts of a store are rows at such multiples too, they are a whole number of rows away: one index
    reaches either memory, and an engine's kernel can take an expert from its slot or from where it lies.

    Planar, each tensor is contiguous, for kernels that take no stride between experts. No index reaches a store
    then: what a step needs has to be in the arena.
    """

    def __init__(
        self,
        shape: ArenaShape,
        layout: RowLayout,
        device: torch.device | str,
        *,
        planar: bool = False,
        most_slots: int | None = None,
    ) -> None:
        """Take the memory of `shape`; with `most_slots` it can be resized up to so many slots in each layer.

        Raises:
            ConfigError: the device has too little. UnsupportedError: a planar tensor is no whole number of words.
        """
        self.shape, self.layout, self.planar = shape, layout, planar
        self.device = torch.device(device)
        if planar:
            _check_words(layout)
        self._row_sizes = [part.nbytes for part in layout.parts] if planar else [layout.row_bytes]
        alignment = TENSOR_ALIGNMENT if planar else layout.row_bytes
        what = f"{shape.slots} slots in each of {shape.layers} layers"
        check_device_room(sum(shape.rows * nbytes + alignment for nbytes in self._row_sizes), self.device, what)
        most_rows = None if most_slots is None else replace(shape, slots=max(shape.slots, most_slots)).rows
        self._regions = [
            DeviceMemory(
                shape.rows * nbytes,
                alignment=alignment,
                device=self.device,
                most_bytes=None if most_rows is None else most_rows * nbytes,
            )
            for nbytes in self._row_sizes
        ]
        addresses = [region.bytes for region in self._regions]
        rows = min(len(whole) // nbytes for whole, nbytes in zip(addresses, self._row_sizes, strict=True) if nbytes)
        if planar:
            self.tensors = {
                part.name: whole[: rows * part.nbytes].view(part.dtype).view(rows, *part.shape)
                for part, whole in zip(layout.parts, addresses, strict=True)
            }
        else:
            self._rows = addresses[0].view(rows, layout.row_bytes)
            self.tensors = layout.views(self._rows)

    @property
    def rows(self) -> torch.Tensor:
        """uint8 [rows, row_bytes], of which the first `shape.rows` may be used; of an interleaved arena only."""
        assert not self.planar, "the tensors of an expert are apart in a planar arena"
        return self._rows

    def resize(self, slots: int) -> None:
        """Have `slots` slots in each layer from now on, all rows where they are; on a GPU it waits for the device.

        Callers use `DeviceState.set_slots`, which brings the page tables along.

        Raises:
            DeviceMemoryError: the device has too little. UnsupportedError: it was not made to become so large, or has
            a fixed size. Nothing has changed.
        """
        shape = replace(self.shape, slots=slots)
        self.check_resize(slots)
        try:
            self._fit(shape)
        except WispError:
            self._fit(self.shape)
            raise
        self.shape = shape

    def check_resize(self, slots: int) -> None:
        """`UnsupportedError` if the arena has a fixed size or was made for fewer slots."""
        rows = replace(self.shape, slots=slots).rows
        for region, row_bytes in zip(self._regions, self._row_sizes, strict=True):
            region.check_resize(rows * row_bytes)

    def _fit(self, shape: ArenaShape) -> None:
        for region, row_bytes in zip(self._regions, self._row_sizes, strict=True):
            region.resize(shape.rows * row_bytes)

    def reaches(self, store: ExpertStore) -> bool:
        """Whether the experts of the store have row indices of the arena, so that kernels may read them there."""
        return not self.planar and store.rows is not None

    def direct_row(self, store: ExpertStore) -> int:
        """The row of the store's expert 0, of a store that the arena reaches."""
        assert store.rows is not None, "its experts are rows"
        distance = store.rows.data_ptr() - self.rows.data_ptr()
        assert distance % self.layout.row_bytes == 0, "stores and arena start at multiples of a row"
        return distance // self.layout.row_bytes

    def home_rows(self, store: ExpertStore) -> torch.Tensor:
        """int64 [experts]: where the kernel finds an expert without a slot; NOT_RESIDENT where it cannot."""
        if not self.reaches(store):
            return torch.full((store.num_experts,), NOT_RESIDENT, dtype=torch.int64)
        return self.direct_row(store) + torch.arange(store.num_experts, dtype=torch.int64)

    def places(self, store: ExpertStore) -> torch.Tensor:
        """int64 [segments, 3], on the device: words, address in row 0, and bytes to the next row of each piece.

        Raises:
            UnsupportedError: a piece is no whole number of words, or does not start at one.
        """
        cut = any(segment.nbytes % WORD_BYTES for segment in store.segments)
        if cut or int(store.addresses().remainder(WORD_BYTES).max()):
            raise UnsupportedError(
                f"some tensors of the experts start or end at no multiple of {WORD_BYTES} bytes, and the device copies "
                f"whole words; set backing_store to memory"
            )
        starts = {part.name: part.start for part in self.layout.parts}
        table = []
        for segment in store.segments:
            tensor = self.tensors[segment.name]
            address = tensor.data_ptr() + segment.start - starts[segment.name]
            table.append((segment.nbytes // WORD_BYTES, address, tensor.stride(0) * tensor.itemsize))
        return torch.tensor(table, dtype=torch.int64).to(self.device)

    def move(self, from_row: int, to_row: int) -> None:
        """Copy a row to another, in the order of the current stream."""
        for tensor in self.tensors.values() if self.planar else (self.rows,):
            tensor[to_row].copy_(tensor[from_row])

    def link_bytes_per_second(self, store: ExpertStore, *, repeats: int = 4) -> float:
        """How fast the store's bytes come into the arena: the best of some copies of the largest piece of an expert."""
        index, largest = max(enumerate(store.segments), key=lambda item: item[1].nbytes)
        source = store.piece(0, index)
        target = self.tensors[largest.name][0].view(-1).view(torch.uint8)[: largest.nbytes]
        if self.reaches(store) and store.rows is not None:
            source, target = store.rows[0], self.rows[0]
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
                f"words of {WORD_BYTES}; keep each expert in one row, or page these on the host"
            )


def _now(device: torch.device) -> float:
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
