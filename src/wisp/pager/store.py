"""Backing store: the master copy of one layer's experts, in host memory."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch

from wisp.pager.host_memory import HostRegion, PageLock

TENSOR_ALIGNMENT = 256
"""Each tensor of an expert starts at a multiple of this many bytes of its row."""
ROW_ALIGNMENT = 4096
"""A row is a whole number of memory pages."""


class ByExpert(Protocol):
    """One tensor of all experts: [expert] is that of one, for reading."""

    @property
    def shape(self) -> torch.Size:
        """[experts, ...]"""

    @property
    def dtype(self) -> torch.dtype:
        """Its type."""

    def __getitem__(self, expert: int, /) -> torch.Tensor: ...


class ExpertStore(Protocol):
    """Every expert of one layer, as the engine's kernel takes them."""

    num_experts: int
    layout: "RowLayout"
    segments: tuple["Segment", ...]
    """The pieces in which an expert lies, in the order of its row; the same of every expert."""

    @property
    def rows(self) -> torch.Tensor | None:
        """uint8 [experts, row_bytes] where an expert is a row of `layout`, at a multiple of its size; else None."""

    @property
    def tensors(self) -> Mapping[str, ByExpert]:
        """By name, in the order of the layout."""

    @property
    def page_locked(self) -> bool:
        """Whether copies to a GPU go straight from this memory."""

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert: all its tensors together, without padding."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the store takes, or holds in the page cache."""

    def check(self) -> None:
        """Raise `CheckpointError` if what the store holds was changed by others."""

    def load(self, expert: int, into: Mapping[str, torch.Tensor]) -> None:
        """Copy one expert into tensors of its own, by name, in the order of the current stream.

        Raises:
            CheckpointError: see `check`.
        """

    def on_device(self, device: torch.device) -> dict[str, torch.Tensor]:
        """name -> [experts, ...]: all of the store on the device, each tensor contiguous."""

    def piece(self, expert: int, segment: int) -> torch.Tensor:
        """uint8: the bytes of one piece where they lie, for reading."""

    def addresses(self) -> torch.Tensor:
        """int64 [experts, segments]: where each piece lies."""


class HostStore:
    """Every expert of one layer, a row each. `tensors[name]` is [experts, ...] and may be written to load it.

    A row holds all tensors of an expert together, so that it is copied as one piece, and rows start at multiples
    of `row_bytes`, as slots on the device do: one index then names a row wherever it lies.
    """

    def __init__(
        self,
        like: Mapping[str, torch.Tensor],
        *,
        page_lock: PageLock = "auto",
        device: torch.device | str = "cpu",
        lock_later: bool = False,
    ) -> None:
        """Take names, shapes and types from `like` ([experts, ...] each); `device` is where the slots are.

        With `lock_later` it is page-locked by the threads of `lock_by`; see `HostRegion`.
        """
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
            lock_later=lock_later,
        )
        self.rows = self._region.bytes.view(self.num_experts, self.layout.row_bytes)
        """uint8 [experts, row_bytes]"""
        self.tensors = self.layout.views(self.rows)
        self.segments = self.layout.segments()

    def lock_by(self, threads: Executor) -> None:
        """Have one of them page-lock it, while it is written."""
        self._region.lock_by(threads)

    def check(self) -> None:
        """See `ExpertStore`: nobody else can write here."""

    @property
    def page_locked(self) -> bool:
        """Whether copies to a GPU go straight from this memory; waits for what locks it, and raises what that met."""
        return self._region.page_locked

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert: all its tensors together, without padding."""
        return self.layout.expert_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the store takes."""
        return self.rows.numel()

    def load(self, expert: int, into: Mapping[str, torch.Tensor]) -> None:
        """See `ExpertStore`."""
        for name, target in into.items():
            target.copy_(self.tensors[name][expert], non_blocking=True)

    def on_device(self, device: torch.device) -> dict[str, torch.Tensor]:
        """See `ExpertStore`; for a while it takes twice the bytes there."""
        rows = self.rows.to(device)  # in one piece: strided copies are slow
        return {name: tensor.contiguous() for name, tensor in self.layout.views(rows).items()}

    def piece(self, expert: int, segment: int) -> torch.Tensor:
        """See `ExpertStore`."""
        start = self.segments[segment].start
        return self.rows[expert, start : start + self.segments[segment].nbytes]

    def addresses(self) -> torch.Tensor:
        """See `ExpertStore`."""
        first, row_bytes = self.rows.data_ptr(), self.layout.row_bytes
        starts = [segment.start for segment in self.segments]
        addresses = [[first + expert * row_bytes + start for start in starts] for expert in range(self.num_experts)]
        return torch.tensor(addresses, dtype=torch.int64, device="cpu")


@dataclass(frozen=True)
class Segment:
    """A piece of an expert's row, of one tensor."""

    name: str
    start: int
    """Its first byte in the row."""
    nbytes: int


@dataclass(frozen=True)
class RowPart:
    """One tensor of an expert within its row."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    """Its first byte."""

    @property
    def nbytes(self) -> int:
        """Its bytes, without padding."""
        return prod(self.shape) * self.dtype.itemsize


class RowLayout:
    """Where the tensors of an expert lie within its row."""

    def __init__(self, tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        """`tensors`: name -> (shape of one expert's tensor, type)."""
        self.signature = tuple(tensors.items())
        """Equal for layouts that are alike: names, shapes and types in order."""
        parts: list[RowPart] = []
        end = 0
        for name, (shape, dtype) in self.signature:
            parts.append(RowPart(name, shape, dtype, end))
            end += _round_up(parts[-1].nbytes, TENSOR_ALIGNMENT)
        self.parts = tuple(parts)
        self.row_bytes = _round_up(end, ROW_ALIGNMENT)
        self.expert_bytes = sum(part.nbytes for part in parts)

    def tail_start(self, late: Callable[[str], bool]) -> int:
        """The first byte of the row's end that holds nothing but `late` tensors; `row_bytes` if there is none."""
        start = self.row_bytes
        for part in reversed(self.parts):
            if not late(part.name):
                break
            start = part.start
        return start

    def segments(self) -> tuple[Segment, ...]:
        """One for each tensor that has bytes."""
        return tuple(Segment(part.name, part.start, part.nbytes) for part in self.parts if part.nbytes)

    def views(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors in `rows` (uint8 [n, row_bytes]): [n, ...] each, rows apart from one another."""
        return {
            part.name: rows[:, part.start : part.start + part.nbytes].view(part.dtype).view(rows.shape[0], *part.shape)
            for part in self.parts
        }


def _round_up(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple
