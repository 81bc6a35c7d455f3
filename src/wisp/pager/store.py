"""Backing store: the master copy of one layer's experts, in host memory."""

from collections.abc import Mapping
from math import prod

import torch

from wisp.pager.host_memory import HostRegion, PageLock

ALIGNMENT = 4096
"""Each tensor starts on a page: registered memory and aligned kernels both want it."""


class HostStore:
    """Every expert of one layer. `tensors[name]` is [experts, ...], contiguous, and may be written to load it.

    One region of exact size holds all tensors, so loading a checkpoint into `tensors` needs no second copy.
    """

    def __init__(
        self,
        like: Mapping[str, torch.Tensor],
        *,
        page_lock: PageLock = "auto",
        device: torch.device | str = "cpu",
    ) -> None:
        """Take names, shapes and types from `like` ([experts, ...] each); `device` is where the slots are."""
        counts = {tensor.shape[0] for tensor in like.values()}
        if len(counts) != 1:
            raise ValueError(f"tensors of one layer disagree on the number of experts: {sorted(counts)}")
        (self.num_experts,) = counts
        starts, end = {}, 0
        for name, tensor in like.items():
            starts[name] = end
            end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        self._region = HostRegion(end, page_lock=page_lock, device=torch.device(device))
        self.tensors = {
            name: self._region.bytes[starts[name] : starts[name] + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for name, tensor in like.items()
        }

    @property
    def page_locked(self) -> bool:
        """Whether copies to a GPU go straight from this memory."""
        return self._region.page_locked

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert: all its tensors together."""
        return sum(prod(tensor.shape[1:]) * tensor.element_size() for tensor in self.tensors.values())

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the store takes."""
        return self._region.bytes.numel()
