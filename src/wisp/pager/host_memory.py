"""Host memory of exact size for a backing store, page-locked where a GPU will read it.

An anonymous mapping is used instead of the engine's usual page-locked allocator, which rounds every
allocation up to a power of two and so can take nearly twice the memory.
"""

import ctypes
import logging
import mmap
import os
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import torch

from wisp.errors import ConfigError, HostMemoryError
from wisp.units import format_bytes

PageLock = Literal["auto", "require", "off"]
"""`auto` page-locks for a GPU and warns if the system refuses; `require` makes a refusal an error."""

PAGE_LOCK_CHOICES: tuple[PageLock, ...] = ("auto", "require", "off")
HEADROOM_BYTES = 1 << 30
"""Left to the rest of the system when the available memory is checked."""

LESS_FOR_EXPERTS = (
    "leave unquantised experts in the checkpoint's files (backing_store), or serve a smaller or more strongly "
    "quantised model"
)

PAGE_BYTES = 2 << 20
"""A huge page."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HostMemory:
    """What this process may still use, and which limit says so."""

    available_bytes: int
    limited_by: str

    @classmethod
    def read(cls, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> "HostMemory":
        """Read the machine's free memory and the limits of this process's control groups; the least counts."""
        machine = cls(_meminfo(proc / "meminfo", "MemAvailable"), "the machine's available memory")
        limit = _cgroup_available(proc, cgroup)
        if limit is None or limit >= machine.available_bytes:
            return machine
        return cls(limit, "the control group's memory limit")

    def check(self, need_bytes: int, what: str, *, remedy: str = LESS_FOR_EXPERTS) -> None:
        """Raise `HostMemoryError` unless `need_bytes` fit beside `HEADROOM_BYTES`; `remedy` is what to do else."""
        room = self.available_bytes - HEADROOM_BYTES
        if need_bytes <= room:
            return
        raise HostMemoryError(
            f"{what} needs {format_bytes(need_bytes)} of host memory, but {self.limited_by} leaves "
            f"{format_bytes(max(room, 0))} (after {format_bytes(HEADROOM_BYTES)} of headroom); give the process "
            f"{format_bytes(need_bytes - room)} more, {remedy}"
        )


def _meminfo(path: Path, key: str) -> int:
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    raise HostMemoryError(
        f"{path} has no {key} line, so the free host memory is unknown; set host_memory to what may be used"
    )


_CGROUP_VERSIONS = (
    ("", ("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file")),
    (
        "memory",
        ("memory.limit_in_bytes",),
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)
"""Controller (version 2 has one tree for all), and what version 2 and version 1 call limits, usage and page cache.

Beyond `memory.high` nothing fails, but every allocation is slowed down until something is given back.
"""


def _cgroup_available(proc: Path, cgroup: Path) -> int | None:
    """Bytes left under the tightest limit around this process; None where there is no limit."""
    left = []
    for controller, limit_names, usage_name, cache_keys in _CGROUP_VERSIONS:
        for folder, limit_name in product(_own_groups(proc, cgroup, controller), limit_names):
            try:
                limit = int((folder / limit_name).read_text())
                usage = int((folder / usage_name).read_text())
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                # Page cache is given back under pressure, so it is not in use for this purpose: not even active, as
                # a checkpoint's is after its second load. What someone has page-locked of it counts as given back too.
                left.append(limit - usage + sum(int(stat.get(key, 0)) for key in cache_keys))
            except (OSError, ValueError):  # there is no such group here, or its limit is "max"
                continue
    return min(left, default=None)


def _own_groups(proc: Path, cgroup: Path, controller: str) -> list[Path]:
    """The folders of the groups that this process is in, from the root down."""
    root = cgroup / controller
    try:
        lines = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
        own = next(Path(path.lstrip("/")) for _, names, path in lines if controller in names.split(","))
    except (OSError, ValueError, StopIteration):
        return [root]
    return [root / group for group in (*reversed(own.parents), own)]


class HostRegion:
    """`nbytes` of zeroed host memory that starts at a multiple of `alignment`.

    It may be written at once, also while another thread has the system provide and page-lock it.
    """

    def __init__(
        self,
        nbytes: int,
        *,
        alignment: int,
        page_lock: PageLock,
        device: torch.device,
        lock_later: bool = False,
    ) -> None:
        """It is page-locked here, or with `lock_later` by a thread of `lock_by`, at the latest when that is asked."""
        if page_lock not in PAGE_LOCK_CHOICES:
            raise ConfigError(f"page_lock must be one of {', '.join(PAGE_LOCK_CHOICES)}, not {page_lock!r}")
        try:
            # What lies before the aligned start is never touched and so takes no memory.
            mapped = mmap.mmap(-1, nbytes + alignment, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise HostMemoryError(
                f"cannot map {format_bytes(nbytes)} of host memory for the backing store: {error}; "
                f"free memory or raise the limit on address space (ulimit -v)"
            ) from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            mapped.madvise(mmap.MADV_HUGEPAGE)  # fewer, larger pages lock several times faster
        whole = torch.frombuffer(mapped, dtype=torch.uint8)
        start = -whole.data_ptr() % alignment
        self.bytes = whole[start : start + nbytes]
        self._page_lock = page_lock
        self._locked: Future[bool] | bool | None = False
        if device.type != "cuda" or page_lock == "off":
            return
        if not advise(self.bytes.data_ptr(), 1, POPULATE_WRITE):  # before Linux 5.14
            _by_piece(self.bytes, lambda first, nbytes: ctypes.memset(first, 0, nbytes))  # nobody else writes yet
        self._locked = None if lock_later else self._provide_and_lock()

    def lock_by(self, threads: Executor) -> None:
        """Have one of them page-lock it, unless that is done or none is wanted."""
        if self._locked is None:
            self._locked = threads.submit(_lock_in_turn, weakref.ref(self), torch.cuda.current_device())

    @property
    def page_locked(self) -> bool:
        """Whether a GPU can copy from it without a detour through a staging buffer; waits until that is known.

        Raises:
            HostMemoryError: the system refuses, and it is required.
        """
        if self._locked is None:
            self._locked = self._provide_and_lock()
        if isinstance(self._locked, Future):
            self._locked = self._locked.result()
        return self._locked

    def _provide_and_lock(self) -> bool:
        provide(self.bytes)
        return self._lock()

    def _lock(self) -> bool:
        return lock_pages(self, self.bytes.data_ptr(), self.bytes.numel(), self._page_lock)


def _lock_in_turn(region: "weakref.ref[HostRegion]", gpu: int) -> bool:
    """In another thread, which may have many to lock: one that was dropped meanwhile takes no memory any more.

    What has not been written until then is provided by the locking itself, page by page.
    """
    held = region()
    if held is None:
        return False
    with torch.cuda.device(gpu):  # a thread begins with the first one, which may be another rank's
        return held._lock()


READ_ONLY = 8
"""cudaHostRegisterReadOnly: without it the driver refuses the pages of a file."""


def lock_pages(owner: object, address: int, nbytes: int, page_lock: PageLock, *, flags: int = 0) -> bool:
    """Page-lock host memory for as long as `owner` lives; whether the system has granted it.

    Raises:
        HostMemoryError: it has not, and `page_lock` requires it.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    failure = int(runtime.cudaHostRegister(address, nbytes, flags))
    if failure == 0:
        weakref.finalize(owner, runtime.cudaHostUnregister, address)
        return True
    _forget_cuda_error()
    message = (
        f"the system refused to page-lock {format_bytes(nbytes)} of host memory (CUDA error {failure}); raise "
        f"the limit on locked memory (ulimit -l unlimited), or under WSL2 give it more memory"
    )
    if flags & READ_ONLY:
        message += ", or set backing_store to memory, for these are pages of a file"
    if page_lock == "require":
        raise HostMemoryError(message + ", or set page_lock to auto")
    logger.warning("%s. Experts are copied from ordinary memory instead, several times slower.", message)
    return False


def _forget_cuda_error() -> None:
    """CUDA keeps the failure as its last error, which the next launch would report as its own: let one report it."""
    try:
        torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError):
        logger.debug("cleared CUDA's last error")


def provide(memory: torch.Tensor) -> None:
    """Have the system provide zeroed pages, by several threads: it zeroes them one by one otherwise.

    What is written meanwhile stays.
    """
    _by_piece(memory, lambda first, nbytes: advise(first, nbytes, POPULATE_WRITE))


def read_in(memory: torch.Tensor) -> None:
    """Have the system read the pages of a mapped file, by several threads.

    Where its kernel cannot (before Linux 5.14), page-locking reads them, one by one.
    """
    _by_piece(memory, lambda first, nbytes: advise(first, nbytes, POPULATE_READ))


POPULATE_READ, POPULATE_WRITE = 22, 23
"""Linux's madvise(2)."""


def advise(first: int, nbytes: int, advice: int) -> bool:
    """Tell the system of the pages from this address on; whether it knows the advice and could follow it."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    before = first % mmap.PAGESIZE
    return int(madvise(first - before, nbytes + before, advice)) == 0


def _by_piece(memory: torch.Tensor, work: Callable[[int, int], object]) -> None:
    """Call work(address, bytes) on pieces as long as huge pages; ctypes releases the interpreter lock meanwhile."""
    workers = min(16, os.cpu_count() or 1)
    piece = max(PAGE_BYTES, -(-memory.numel() // workers) // PAGE_BYTES * PAGE_BYTES)
    first, end = memory.data_ptr(), memory.data_ptr() + memory.numel()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda start: work(start, min(piece, end - start)), range(first, end, piece)))
