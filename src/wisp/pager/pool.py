"""The slots of one layer: device memory for some of its experts."""

import torch

from wisp.pager.store import HostStore


class SlotPool:
    """`slots` frames; `tensors[name]` is [slots, ...], what the engine's kernel takes in place of all experts."""

    def __init__(self, store: HostStore, slots: int, device: torch.device | str) -> None:
        self.slots = slots
        self.device = torch.device(device)
        self.num_experts = store.num_experts
        self._store = store
        self.tensors = {
            name: torch.zeros((slots, *master.shape[1:]), dtype=master.dtype, device=device)
            for name, master in store.tensors.items()
        }

    def load(self, expert: int, slot: int) -> None:
        """Copy one expert into a slot, in the order of the current stream (P2 of the paper: no barrier needed)."""
        for name, frame in self.tensors.items():
            frame[slot].copy_(self._store.tensors[name][expert], non_blocking=True)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the slots take."""
        return sum(tensor.nbytes for tensor in self.tensors.values())
