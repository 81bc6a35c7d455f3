"""Layers of random experts, paged on a GPU, for the tests in `tests/gpu`."""

import tempfile
from pathlib import Path

import torch
from file_store import write_store

from wisp.pager.arena import Arena, ArenaShape
from wisp.pager.device import DevicePager
from wisp.pager.device_state import DeviceState
from wisp.pager.store import HostStore
from wisp.pager.stream_layout import StreamShape

EXPERTS, SLOTS, MOST_SLOTS, TOP_K, LAYERS = 64, 12, 48, 8, 3
STAGING = StreamShape(group_experts=4, groups=2)


WEIGHTS = {"w13": ((768, 512), torch.bfloat16)}
QUANTISED = {"w13": ((300, 1024), torch.int32), "scale": ((), torch.float32), "w2": ((64, 301), torch.uint8)}
IN_FILES = {"w13": ((768, 512), torch.bfloat16), "w2": ((128, 301), torch.bfloat16)}
QUANTISED |= {"w2_scale": ((3,), torch.float32), "none": ((0,), torch.int32), "bias": ((6,), torch.bfloat16)}


class Layers:
    """Random experts of about 1 MiB, page-locked, and their pagers."""

    def __init__(self, *, planar: bool = False, in_files: bool = False) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.stores = []
        for _ in range(LAYERS):
            tensors = QUANTISED if planar else IN_FILES if in_files else WEIGHTS
            like = {
                name: torch.empty(EXPERTS, *shape, dtype=dtype, device="meta")
                for name, (shape, dtype) in tensors.items()
            }
            store = HostStore(like, page_lock="require", device=self.device)
            store.rows.copy_(torch.randint(0, 256, store.rows.shape, dtype=torch.uint8))
            if in_files:
                with tempfile.NamedTemporaryFile() as file:
                    path = Path(file.name)
                    self.stores.append(write_store(store, path, page_lock="require", device=self.device))
            else:
                self.stores.append(store)
        size = STAGING.group_experts
        rows = EXPERTS - SLOTS + 2 * size if planar else 4 * TOP_K - SLOTS if in_files else STAGING.rows
        self.staging = StreamShape(size, rows // size, whole=True) if planar else STAGING
        shape = ArenaShape(LAYERS, SLOTS, rows)
        self.arena = Arena(shape, self.stores[0].layout, self.device, planar=planar, most_slots=MOST_SLOTS)
        self.state = DeviceState(self.arena, self.stores)
        self.pagers = [
            DevicePager(layer, self.state, store, self.arena, link_bytes_per_second=5e10)
            for layer, store in enumerate(self.stores)
        ]

    def wrong_slots(self, layer: int) -> int:
        """Residents whose slot does not hold their bytes."""
        torch.cuda.synchronize()
        slots = enumerate(self.state.slot_of[layer].tolist())
        row = self.arena.shape.slot_row
        return sum(not self.holds(layer, row(layer, slot), expert) for expert, slot in slots if slot >= 0)

    def holds(self, layer: int, row: int, expert: int) -> bool:
        """Whether all of the expert's bytes are in the row of the arena."""
        return all(
            torch.equal(as_bytes(tensor[row].cpu()), as_bytes(self.stores[layer].tensors[name][expert]))
            for name, tensor in self.arena.tensors.items()
        )


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
