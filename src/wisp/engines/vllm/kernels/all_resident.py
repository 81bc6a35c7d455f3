"""Slots for every expert on a GPU: there is nothing to page, and the engine computes as it does without wisp."""

from typing import Any

import torch

from wisp.pager.pool import check_device_room
from wisp.pager.store import ExpertStore


class AllResidentKernel:
    """The engine's kernel as it is. Nothing is decided, so nothing is counted either."""

    def __init__(self, experts: Any) -> None:
        self._apply = experts.apply

    def run(self, **arguments: Any) -> None:
        """See `PagedKernel`."""
        self._apply(**arguments)


def resident_tensors(store: ExpertStore, device: torch.device) -> dict[str, torch.Tensor]:
    """name -> [experts, ...]: all of the store on the device, each tensor contiguous as the engine lays it out.

    Raises:
        ConfigError: the device has no room for them.
    """
    need_bytes = 2 * store.nbytes - _cached_bytes(device)  # twice for a while
    check_device_room(need_bytes, device, f"all {store.num_experts} experts of one more layer")
    return store.on_device(device)


def _cached_bytes(device: torch.device) -> int:
    """What PyTorch holds of the device and has no use for, such as the rows of the layer before."""
    if device.type != "cuda":
        return 0
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
