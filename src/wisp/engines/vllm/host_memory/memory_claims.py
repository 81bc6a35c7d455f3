"""What the workers of one engine on this machine have claimed of its memory.

Each worker knows what it needs itself: its share of every expert, its own experts, or the layers of its stage. While
one fills its backing stores the free memory shrinks, so that a worker that comes later must not hold its need against
what is free by then. The first to claim notes what was free before any of them had taken some, and all claims together
have to fit that.
"""

import fcntl
import json
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from wisp.engines.vllm.counters import counter_files
from wisp.pager.host_memory import HostMemory

_SUFFIX = ".memory"


def path_for(instance_id: str) -> Path:
    """The claims of one engine on this machine; the name starts with a process that outlives its workers."""
    counter_files.prepare_directory()
    owner = counter_files.owned_by_front_end() or os.getppid()
    return counter_files.directory() / f"{owner}-{instance_id}{_SUFFIX}"


class MemoryClaims:
    """One worker's view of the claims in `path`; its own lapse when it is dropped."""

    def __init__(self, path: Path, worker: str) -> None:
        """`worker` tells this one from the others of its engine."""
        self._path, self._worker = path, worker
        weakref.finalize(self, _withdraw, path, worker)

    def claim(self, need_bytes: int, free: Callable[[], HostMemory], what: str) -> None:
        """Claim `need_bytes` in all for this worker; `free` is asked by the first worker only, `what` is for people.

        Raises:
            HostMemoryError: with the claims of the others it is more than was free; nothing is claimed then.
        """
        with _locked(self._path) as file:
            stored = json.loads(file.read() or "null")
            if stored is None:
                memory = free()
                stored = {"bytes": memory.available_bytes, "limited_by": memory.limited_by, "claims": {}}
            claims: dict[str, int] = {**stored["claims"], self._worker: need_bytes}
            workers = f" on {len(claims)} ranks so far" if len(claims) > 1 else ""
            HostMemory(stored["bytes"], stored["limited_by"]).check(sum(claims.values()), what + workers)
            _write(file, {**stored, "claims": claims})


def _withdraw(path: Path, worker: str) -> None:
    if not path.exists():
        return
    with _locked(path) as file:
        stored = json.loads(file.read() or "null") or {"claims": {}}
        stored["claims"].pop(worker, None)
        _write(file, stored)
        if not stored["claims"]:
            path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[TextIO]:
    """The file, for one process at a time; it is made if need be."""
    while True:
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink == 0:  # its last claim lapsed while this process waited
                continue
            file.seek(0)
            yield file
            return


def _write(file: TextIO, stored: dict[str, object]) -> None:
    file.seek(0)
    file.truncate()
    json.dump(stored, file)
    file.flush()
