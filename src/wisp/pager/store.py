"""Backing store: the master copy of one layer's experts, in host memory."""

from collections.abc import Mapping
from math import prod

import torch

from wisp.pager.host_memory import HostRegion, PageLock

TENSOR_ALIGNMENT = 256
"""Each tensor of an expert starts at a multiple of this many bytes of its row."""
ROW_ALIGNMENT = 4096
"""A row is a whole number of memory pages."""


class HostStore:
    """Every expert of one layer, a row each. `tensors[name]` is [experts, ...] and may be written to load it.

    A row holds all tensors of an expert together, so that it is copied as one piece, and rows start at multiples
    of `row_bytes`, as slots on the device do: one index then names a row wherever it lies.
    """

    def __init__(
        self, like: Mapping[str, torch.Tensor], *, page_lock: PageLock = "auto", device: torch.device | str = "cpu"
    ) -> None:
        """Take names, shapes and types from `like` ([experts, ...] each); `device` is where the slots are."""
        counts = {tensor.shape[0] for tensor in like.values()}
        if len(counts) != 1:
            raise ValueError(f"tensors of one layer disagree on the number of experts: {sorted(counts)}")
        (self.num_experts,) = counts
        self.layout = RowLayout({name: (tuple(tensor.shape[1:]), tensor.dtype) for name, tensor in like.items()})
        self._region = HostRegion(
            self.num_experts * self.layout.row_bytes,
            alignment=self.layout.row_bytes,
            page_lock=page_lock,
            device=torch.device(device),
        )
        self.rows = self._region.bytes.view(self.num_experts, self.layout.row_bytes)
        """uint8 [experts, row_bytes]"""
        self.tensors = self.layout.views(self.rows)

    @property
    def page_locked(self) -> bool:
        """Whether copies to a GPU go straight from this memory."""
        return self._region.page_locked

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert: all its tensors together, without padding."""
        return self.layout.expert_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the store takes."""
        return self.rows.numel()


class RowLayout:
    """Where the tensors of an expert lie within its row."""

    def __init__(self, tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        """`tensors`: name -> (shape of one expert's tensor, type)."""
        self._tensors = dict(tensors)
        self.signature = tuple(self._tensors.items())
        """Equal for layouts that are alike: names, shapes and types in order."""
        self._starts: dict[str, int] = {}
        end = 0
        for name, (shape, dtype) in self._tensors.items():
            self._starts[name] = end
            end += _round_up(prod(shape) * dtype.itemsize, TENSOR_ALIGNMENT)
        self.row_bytes = _round_up(end, ROW_ALIGNMENT)
        self.expert_bytes = sum(prod(shape) * dtype.itemsize for shape, dtype in self._tensors.values())

    def views(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors in `rows` (uint8 [n, row_bytes]): [n, ...] each, rows apart from one another."""
        views = {}
        for name, (shape, dtype) in self._tensors.items():
            start = self._starts[name]
            flat = rows[:, start : start + prod(shape) * dtype.itemsize].view(dtype)
            views[name] = flat.view(rows.shape[0], *shape)
        return views


def _round_up(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple
