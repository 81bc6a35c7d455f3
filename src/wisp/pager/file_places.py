"""Which file a tensor's bytes are mapped from, and where in it: for weights that a loader maps but does not copy."""

import ctypes
from pathlib import Path
from typing import NamedTuple

import torch

from wisp.errors import UnsupportedError
from wisp.pager.checkpoint_store import FilePlace
from wisp.pager.mapped_file import MappedFile

COMPARED_BYTES = 64
"""Of the start of each tensor, in case a loader has changed its private copy of the pages."""


class _Span(NamedTuple):
    start: int
    end: int
    path: str
    file_start: int


class FileFinder:
    """Looks addresses up in this process's list of mappings, which it keeps mapped: drop it once all is loaded."""

    def __init__(self, maps: Path = Path("/proc/self/maps")) -> None:
        self._maps = maps
        self._found: list[tuple[_Span, torch.UntypedStorage, MappedFile]] = []
        """The storage keeps the mapping: its addresses cannot become another file's meanwhile."""

    def find(self, tensor: torch.Tensor) -> FilePlace:
        """Where the first byte of a contiguous tensor in host memory lies.

        Raises:
            UnsupportedError: it is not the content of a file (any more); the text goes on after "the experts".
        """
        address = tensor.data_ptr()
        span, file = self._span(address, tensor)
        place = FilePlace(file, span.file_start + address - span.start)
        compared = min(COMPARED_BYTES, tensor.nbytes)
        in_file = file.bytes[place.start : place.start + compared]
        if in_file.numel() < compared or bytes(in_file.tolist()) != ctypes.string_at(address, compared):
            raise UnsupportedError(f"were changed on their way from {file.path}")
        return place

    def _span(self, address: int, tensor: torch.Tensor) -> tuple[_Span, MappedFile]:
        for span, _, file in reversed(self._found):
            if span.start <= address < span.end:
                return span, file
        span = self._look_up(address)
        file = MappedFile.of(Path(span.path))
        self._found.append((span, tensor.untyped_storage(), file))
        return span, file

    def _look_up(self, address: int) -> _Span:
        for line in self._maps.read_text().splitlines():
            fields = line.split(maxsplit=5)
            start, end = (int(each, 16) for each in fields[0].split("-"))
            if not start <= address < end:
                continue
            path = fields[5] if len(fields) > 5 else ""
            if not path.startswith("/") or not Path(path).is_file():  # a file that was replaced is "(deleted)"
                break
            return _Span(start, end, path, int(fields[2], 16))
        raise UnsupportedError("were not mapped from a file, but read into memory or made up")
