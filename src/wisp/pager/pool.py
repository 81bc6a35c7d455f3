"""The slots of one layer: device memory for some of its experts."""

import torch

from wisp.errors import DeviceMemoryError
from wisp.pager.store import ExpertStore


def check_device_room(need_bytes: int, device: torch.device, what: str) -> None:
    """`DeviceMemoryError` if the device has less free memory; a CPU's is checked where the backing store is made."""
    if device.type != "cuda":
        return
    free_bytes, _ = torch.cuda.mem_get_info(device)
    if need_bytes > free_bytes:
        raise DeviceMemoryError(need_bytes, free_bytes, what)


class SlotPool:
    """`slots` places; `tensors[name]` is [slots, ...], what the engine's kernel takes in place of all experts."""

    def __init__(self, store: ExpertStore, slots: int, device: torch.device | str) -> None:
        self.slots = slots
        self.device = torch.device(device)
        self.num_experts = store.num_experts
        self._store = store
        check_device_room(slots * store.expert_bytes, self.device, f"{slots} slots of one layer")
        self.tensors = {
            name: torch.zeros((slots, *master.shape[1:]), dtype=master.dtype, device=device)
            for name, master in store.tensors.items()
        }

    def load(self, expert: int, slot: int) -> None:
        """Copy one expert into a slot, in the order of the current stream (P2 of the paper: no barrier needed)."""
        self._store.load(expert, {name: slots[slot] for name, slots in self.tensors.items()})

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the slots take."""
        return sum(tensor.nbytes for tensor in self.tensors.values())
