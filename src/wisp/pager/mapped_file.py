"""Files as memory: the page cache itself, shared with every process that reads or maps the same file."""

import mmap
import os
import threading
import warnings
import weakref
from pathlib import Path
from weakref import WeakValueDictionary

import torch

from wisp.errors import CheckpointError
from wisp.pager.host_memory import READ_ONLY, PageLock, lock_pages, read_in

_mapped: "WeakValueDictionary[tuple[int, int], MappedFile]" = WeakValueDictionary()
"""By device and inode: a file is mapped once in a process, and page-locked once, whoever asks for it."""
_mapping = threading.Lock()


class MappedFile:
    """A whole file, for reading. `bytes` is uint8 [nbytes] from the start of a page; nobody may write to it.

    The file has to stay as it is: a program that writes into it changes what is read here, and to read what it has cut
    off ends the process (SIGBUS). To replace one, write another and rename it.
    """

    def __init__(self, path: Path) -> None:
        """Use `of`, which maps a file once."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        self._as_mapped = self._state()
        pages = mmap.mmap(self._descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is not writable
            self.bytes = torch.frombuffer(pages, dtype=torch.uint8)
        self.page_locked = False
        self._refused = False  # by the system, to page-lock it

    @classmethod
    def of(cls, path: Path) -> "MappedFile":
        """The file at `path`, mapped now or before.

        Raises:
            CheckpointError: it cannot be read, or is empty.
        """
        try:
            status = path.stat()
            with _mapping:
                file = _mapped.get((status.st_dev, status.st_ino))
                if file is None or file._state() != file._as_mapped:
                    file = _mapped[status.st_dev, status.st_ino] = cls(path)
                return file
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be mapped as a backing store: {error}") from error

    def check(self) -> None:
        """Raise `CheckpointError` if anyone has written to the file since it was mapped.

        A file that was renamed, removed or replaced under its name is still the one that was mapped.
        """
        (size, _), (was, _) = now, before = self._state(), self._as_mapped
        if now == before:
            return
        how = f"it had {was} bytes and has {size}" if size != was else f"of {size} bytes, at another time than before"
        raise CheckpointError(
            f"{self.path} was written to while it is a backing store ({how}); start again, and replace a checkpoint's "
            f"file only by renaming another, or set backing_store to memory"
        )

    def _state(self) -> tuple[int, int]:
        """What a write changes: the size, and when the content was changed last."""
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def lock(self, page_lock: PageLock, device: torch.device) -> None:
        """Page-lock it for a GPU, unless it is or nothing asks for it; the file is read if it was not.

        Raises:
            HostMemoryError: the system refuses, and `page_lock` requires it. Otherwise it is asked and warned of once.
        """
        if self.page_locked or device.type != "cuda" or page_lock == "off":
            return
        if self._refused and page_lock == "auto":
            return
        read_in(self.bytes)
        nbytes = -(-self.bytes.numel() // mmap.PAGESIZE) * mmap.PAGESIZE  # a mapping has whole pages
        self.page_locked = lock_pages(self, self.bytes.data_ptr(), nbytes, page_lock, flags=READ_ONLY)
        self._refused = not self.page_locked
