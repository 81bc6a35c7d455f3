"""Backing store: the files of the checkpoint, where they hold the very bytes that the engine's kernel takes."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from wisp.errors import CheckpointError
from wisp.pager.host_memory import PageLock
from wisp.pager.mapped_file import MappedFile
from wisp.pager.store import RowLayout, RowPart, Segment

Arrange = Callable[[torch.Tensor, torch.Tensor], None]
"""arrange(raw, target): lay one tensor of one expert out for the kernel, in place of copying it."""


class FilePlace(NamedTuple):
    """Where a piece of an expert begins: a byte of a file."""

    file: MappedFile
    start: int


class CheckpointStore:
    """Every expert of one layer, in pieces of files; see `ExpertStore`. It takes no memory but the page cache."""

    rows = None

    def __init__(
        self,
        layout: RowLayout,
        segments: Sequence[Segment],
        places: Sequence[Sequence[FilePlace]],
        *,
        page_lock: PageLock = "auto",
        device: torch.device | str = "cpu",
        arrange: Arrange | None = None,
    ) -> None:
        """Take segment s of expert e from `places[e][s]`; the segments together are all bytes of a row of `layout`.

        `device` is where the slots are. With `arrange` (on a host only), what is loaded is laid out on its way.

        Raises:
            CheckpointError: a file was written to, or is too short. HostMemoryError: it cannot be page-locked, but has
            to be.
        """
        self.layout, self.segments, self.num_experts = layout, tuple(segments), len(places)
        self._places, self._arrange = places, arrange
        self._files = {id(place.file): place.file for pieces in places for place in pieces}
        self.check()
        for file in self._files.values():
            file.lock(page_lock, torch.device(device))
        for pieces in places:
            for place, segment in zip(pieces, self.segments, strict=True):
                if place.start + segment.nbytes > place.file.bytes.numel():
                    raise CheckpointError(
                        f"{place.file.path} ends at byte {place.file.bytes.numel()}, but {segment.name} of an expert "
                        f"reaches to {place.start + segment.nbytes}; download the checkpoint again"
                    )

    @property
    def tensors(self) -> "dict[str, FileTensor]":
        """See `ExpertStore`."""
        return {part.name: FileTensor(self, part) for part in self.layout.parts}

    @property
    def page_locked(self) -> bool:
        """Whether copies to a GPU go straight from the page cache."""
        return all(file.page_locked for file in self._files.values())

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert: all its tensors together."""
        return self.layout.expert_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the experts in the page cache, once they have been read."""
        return self.num_experts * self.expert_bytes

    def check(self) -> None:
        """See `ExpertStore`."""
        for file in self._files.values():
            file.check()

    def load(self, expert: int, into: Mapping[str, torch.Tensor]) -> None:
        """See `ExpertStore`."""
        for file in {id(place.file): place.file for place in self._places[expert]}.values():
            file.check()
        raw = into if self._arrange is None else {name: torch.empty_like(target) for name, target in into.items()}
        starts = {part.name: part.start for part in self.layout.parts}
        for index, segment in enumerate(self.segments):
            if segment.name in raw:
                start = segment.start - starts[segment.name]
                whole = raw[segment.name].view(-1).view(torch.uint8)
                whole[start : start + segment.nbytes].copy_(self.piece(expert, index), non_blocking=True)
        if self._arrange is not None:
            for name, target in into.items():
                self._arrange(raw[name], target)

    def on_device(self, device: torch.device) -> dict[str, torch.Tensor]:
        """See `ExpertStore`."""
        tensors = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for name, tensor in self.tensors.items()
        }
        for expert in range(self.num_experts):
            self.load(expert, {name: tensor[expert] for name, tensor in tensors.items()})
        return tensors

    def piece(self, expert: int, segment: int) -> torch.Tensor:
        """See `ExpertStore`; as the file has it."""
        place = self._places[expert][segment]
        return place.file.bytes[place.start : place.start + self.segments[segment].nbytes]

    def addresses(self) -> torch.Tensor:
        """See `ExpertStore`."""
        return torch.tensor(
            [[place.file.bytes.data_ptr() + place.start for place in pieces] for pieces in self._places],
            dtype=torch.int64,
            device="cpu",
        )


class FileTensor:
    """One tensor of all experts of a `CheckpointStore`; that of one expert is put together when it is asked for."""

    def __init__(self, store: CheckpointStore, part: RowPart) -> None:
        self._store, self._part = store, part
        self.shape = torch.Size((store.num_experts, *part.shape))
        self.dtype = part.dtype

    def __getitem__(self, expert: int) -> torch.Tensor:
        """A copy, as a slot would hold it."""
        tensor = torch.empty(self._part.shape, dtype=self.dtype, device="cpu")
        self._store.load(expert, {self._part.name: tensor})
        return tensor
