"""Which file a tensor's bytes are mapped from, and where in it: for weights that a loader maps but does not copy."""

import mmap
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from wisp.errors import UnsupportedError
from wisp.pager.checkpoint_store import FilePlace
from wisp.pager.mapped_file import MappedFile

COMPARED_BYTES = 64
"""Of the start of a tensor whose pages are all the file's; of others, all bytes are compared."""

_THERE, _OF_FILE = 3 << 62, 1 << 61
"""Bits of a page in the list of this process's pages (Linux, `pagemap`): in memory or swapped out; a file's own."""


class _Span(NamedTuple):
    start: int
    end: int
    path: str
    file_start: int


class FileFinder:
    """Looks addresses up in this process's list of mappings, which it keeps mapped: drop it once all is loaded."""

    def __init__(self, pagemap: Path = Path("/proc/self/pagemap")) -> None:
        self._pagemap = pagemap
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
        held = tensor.reshape(-1).view(torch.uint8)
        if not self._may_differ(address, tensor.nbytes):
            held = held[:COMPARED_BYTES]
        if not torch.equal(file.bytes[place.start : place.start + held.numel()], held):
            raise UnsupportedError(f"were changed on their way from {file.path}")
        return place

    def _may_differ(self, address: int, nbytes: int) -> bool:
        """Whether a page of this memory is the process's own copy, as a loader makes it by writing to its mapping.

        So it may be where the system does not tell. No page of the file is read for it.
        """
        first, last = address // mmap.PAGESIZE, (address + nbytes - 1) // mmap.PAGESIZE
        try:
            with self._pagemap.open("rb", buffering=0) as file:
                told = os.pread(file.fileno(), (last - first + 1) * 8, first * 8)
        except OSError:
            return True
        pages = np.frombuffer(told, dtype=np.uint64)
        own = (pages & np.uint64(_THERE) != 0) & (pages & np.uint64(_OF_FILE) == 0)
        return len(pages) <= last - first or bool(own.any())

    def _span(self, address: int, tensor: torch.Tensor) -> tuple[_Span, MappedFile]:
        for span, _, file in reversed(self._found):
            if span.start <= address < span.end:
                return span, file
        span = self._look_up(address)
        file = MappedFile.of(Path(span.path))
        self._found.append((span, tensor.untyped_storage(), file))
        return span, file

    def _look_up(self, address: int) -> _Span:
        for line in Path("/proc/self/maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            start, end = (int(each, 16) for each in fields[0].split("-"))
            if not start <= address < end:
                continue
            path = fields[5] if len(fields) > 5 else ""
            if not path.startswith("/") or not Path(path).is_file():  # a file that was replaced is "(deleted)"
                break
            return _Span(start, end, path, int(fields[2], 16))
        raise UnsupportedError("were not mapped from a file, but read into memory or made up")
