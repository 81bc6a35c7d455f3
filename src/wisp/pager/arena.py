"""Device memory for the slots of all layers, in units of one expert."""

import time
from dataclasses import dataclass

import torch

from wisp.pager.pool import check_device_room
from wisp.pager.store import HostStore, RowLayout


@dataclass(frozen=True)
class ArenaShape:
    """`slots` experts of each of `layers` layers, and `staging_rows` through which experts are streamed."""

    layers: int
    slots: int
    staging_rows: int

    @property
    def rows(self) -> int:
        """Rows in all."""
        return self.layers * self.slots + self.staging_rows

    def slot_row(self, layer: int, slot: int) -> int:
        """Row of a slot: slot-major, so that one more slot in every layer is a piece at the end."""
        return slot * self.layers + layer

    def staging_row(self, place: int) -> int:
        """Row of a place in the staging area."""
        return self.layers * self.slots + place


class Arena:
    """`rows` uint8 [shape.rows, row_bytes], from an address that is a multiple of `row_bytes`.

    Backing stores start at such multiples too, so an expert of a store is a whole number of rows away: one index
    reaches either memory, and an engine's kernel can take an expert from its slot or from where it lies.
    """

    def __init__(self, shape: ArenaShape, layout: RowLayout, device: torch.device | str) -> None:
        self.shape, self.layout = shape, layout
        self.device = torch.device(device)
        nbytes = shape.rows * layout.row_bytes
        what = f"{shape.slots} slots in each of {shape.layers} layers"
        check_device_room(nbytes + layout.row_bytes, self.device, what)
        whole = torch.zeros(nbytes + layout.row_bytes, dtype=torch.uint8, device=device)
        start = -whole.data_ptr() % layout.row_bytes
        self.rows = whole[start : start + nbytes].view(shape.rows, layout.row_bytes)
        self.tensors = layout.views(self.rows)
        """name -> [shape.rows, ...], what the engine's kernel takes in place of all experts."""

    def direct_row(self, store: HostStore) -> int:
        """The row of the store's expert 0."""
        distance = store.rows.data_ptr() - self.rows.data_ptr()
        assert distance % self.layout.row_bytes == 0, "stores and arena start at multiples of a row"
        return distance // self.layout.row_bytes

    def link_bytes_per_second(self, store: HostStore, *, repeats: int = 4) -> float:
        """How fast the store's rows come into the arena: the best of some copies of one row."""
        seconds = []
        for _ in range(repeats):
            start = _now(self.device)
            self.rows[0].copy_(store.rows[0], non_blocking=True)
            seconds.append(_now(self.device) - start)
        return self.layout.row_bytes / min(seconds)


def _now(device: torch.device) -> float:
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
