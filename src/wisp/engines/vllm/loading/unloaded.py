"""Parameters that note where their bytes lie in the checkpoint, in place of taking a copy of them.

vLLM's loaders cut what they read and copy each piece into a view of a parameter. Here that view has no memory: the copy
is noted, the files are found by the addresses of what was to be copied, and the experts stay where they are.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from wisp.errors import CheckpointError, UnsupportedError
from wisp.pager.checkpoint_store import FilePlace
from wisp.pager.file_places import FileFinder
from wisp.pager.store import RowLayout, Segment

_ALLOWED_IN_PLACE = ("requires_grad_", "detach_")
_AUGMENTED = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__setitem__")
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]  # a C descriptor

Pieces = dict[int, tuple[int, FilePlace]]
"""First byte within the tensor of one expert -> (bytes, where they lie)."""


class LoadNotes:
    """What was to be copied into one parameter, expert by expert, and the first thing that cannot be left in a file."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, finder: FileFinder) -> None:
        self._dtype, self._finder = dtype, finder
        self._expert_bytes = torch.Size(shape[1:]).numel() * dtype.itemsize
        self.pieces: list[Pieces] = [{} for _ in range(shape[0])]
        self.problem: str | None = None

    def note(self, target: torch.Tensor, source: object) -> None:
        """Take down one copy into a view of the parameter; after a problem there is nothing to take down."""
        if self.problem is not None:
            return
        try:
            self._note(target, source)
        except UnsupportedError as error:
            self.problem = str(error)
        except CheckpointError as error:
            self.problem = f"cannot stay where they are ({error})"

    def refuse(self, operation: str) -> None:
        """Take down that something else was to be done to the parameter."""
        self.problem = self.problem or f"are changed by {operation} while they are loaded"

    def _note(self, target: torch.Tensor, source: object) -> None:
        if not isinstance(source, torch.Tensor) or source.shape != target.shape or source.device.type != "cpu":
            raise UnsupportedError("are put together while they are loaded")
        if source.dtype != self._dtype:
            raise UnsupportedError(f"are {source.dtype} in the checkpoint and {self._dtype} for the kernel (--dtype)")
        if target.ndim > 2:  # of several experts
            for one, its_source in zip(target.unbind(), source.unbind(), strict=True):
                self._note(one, its_source)
            return
        if not target.is_contiguous():
            raise UnsupportedError("are padded for the kernel")
        if not source.is_contiguous():
            raise UnsupportedError("are transposed, or cut across their rows, while they are loaded")
        if source.numel():
            expert, start = divmod(int(target.storage_offset()) * self._dtype.itemsize, self._expert_bytes)
            self.pieces[expert][start] = (source.nbytes, self._finder.find(source))


class UnloadedTensor(torch.Tensor):
    """A tensor without memory, or a view of one; `notes` has what was to be copied into it."""

    notes: LoadNotes

    @classmethod
    def like(cls, tensor: torch.Tensor, finder: FileFinder) -> "UnloadedTensor":
        """[experts, ...] of the same shape and type."""
        unloaded = torch.empty_like(tensor, device="meta").as_subclass(cls)
        unloaded.notes = LoadNotes(tensor.shape, tensor.dtype, finder)
        return unloaded

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Note what would change the tensor; all else is as for any tensor without memory, and views have the notes."""
        name = getattr(func, "__name__", "")
        held = next((each.notes for each in args if isinstance(each, cls) and hasattr(each, "notes")), None)
        if held is not None and isinstance(args[0], cls):
            if name == "copy_":
                with torch._C.DisableTorchFunctionSubclass():
                    held.note(args[0], args[1])
                return args[0]
            in_place = name.endswith("_") and not name.endswith("__") and name not in _ALLOWED_IN_PLACE
            if in_place or name in _AUGMENTED:
                held.refuse(name)
                return args[0]
            if func == _SET_DATA:
                held.refuse("assignment")
                return None
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, cls) and held is not None:
                each.notes = held
        return result


def unload(layer: nn.Module, names: Sequence[str], finder: FileFinder) -> dict[str, LoadNotes]:
    """Put parameters without memory in the place of the layer's; by name, what will be noted of them."""
    notes = {}
    for name in names:
        parameter = getattr(layer, name)
        unloaded = UnloadedTensor.like(parameter.data, finder)
        notes[name] = unloaded.notes
        fresh = nn.Parameter(unloaded, requires_grad=False)
        vars(fresh).update(vars(parameter))  # how vLLM loads it
        layer.register_parameter(name, fresh)
    return notes


def places_of(
    layer_name: str, layout: RowLayout, notes: Mapping[str, LoadNotes]
) -> tuple[list[Segment], list[list[FilePlace]]]:
    """The segments of an expert, and of each expert where they lie.

    Raises:
        UnsupportedError: some of the experts' bytes are not in a file as the kernel takes them.
    """
    segments: list[Segment] = []
    places: list[list[FilePlace]] = [[] for _ in next(iter(notes.values())).pieces]
    for part in layout.parts:
        noted = notes[part.name]
        if noted.problem is not None:
            raise _unfit(layer_name, part.name, noted.problem)
        cuts = [(start, nbytes) for start, (nbytes, _) in sorted(noted.pieces[0].items())]
        for expert, pieces in enumerate(noted.pieces):
            own = sorted(pieces.items())
            if sum(nbytes for _, (nbytes, _) in own) != part.nbytes or _has_gaps(own):
                raise _unfit(layer_name, part.name, f"are not all in the files: {len(own)} pieces of expert {expert}")
            if [(start, nbytes) for start, (nbytes, _) in own] != cuts:
                raise _unfit(layer_name, part.name, "are cut differently from one another in the files")
            places[expert] += [place for _, (_, place) in own]
        segments += [Segment(part.name, part.start + start, nbytes) for start, nbytes in cuts]
    return segments, places


def _has_gaps(pieces: list[tuple[int, tuple[int, FilePlace]]]) -> bool:
    end = 0
    for start, (nbytes, _) in pieces:
        if start != end:
            return True
        end += nbytes
    return False


def _unfit(layer_name: str, name: str, problem: str) -> UnsupportedError:
    return UnsupportedError(
        f"backing_store is set to checkpoint, but the experts of {layer_name} ({name}) {problem}, so that their files "
        f"do not hold what the kernel takes; set backing_store to memory"
    )
