"""Where workers keep their counters for others to read, and who sweeps up.

A file's name starts with its owner, the process whose end makes it waste: the front end under `wisp serve`, which
says so in the environment of the processes that it starts, and otherwise the worker itself.
"""

import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from wisp.errors import ConfigError

OWNER_VARIABLE = "WISP_COUNTERS_OWNER"
_SUFFIX, _DRAFT_SUFFIX = ".counters", ".draft-counters"


def directory() -> Path:
    """Private to this user."""
    return Path(tempfile.gettempdir()) / f"wisp-{os.getuid()}"


def owned_by_front_end() -> str | None:
    """The process id of the `wisp serve` that this process belongs to; None under any other command.

    None also on another machine than it runs on: Ray hands the environment on to the workers of every machine.
    """
    owner = os.environ.get(OWNER_VARIABLE)
    return owner if owner and _is_alive(owner) else None


def path_for(instance_id: str, rank: int, *, draft: bool = False) -> Path:
    """A worker's file, in a directory that is there and holds nothing of dead processes; a draft model has its own."""
    prepare_directory()
    suffix = _DRAFT_SUFFIX if draft else _SUFFIX
    return directory() / f"{owned_by_front_end() or os.getpid()}-{instance_id}-rank{rank}{suffix}"


def of_engine(instance_id: str, *, draft: bool = False) -> list[Path]:
    """The counters of one engine's workers, of their target or draft model, in the order of their ranks."""
    return _in_rank_order(f"*-{instance_id}-rank*{_DRAFT_SUFFIX if draft else _SUFFIX}")


def of_owner(owner: str, *, draft: bool = False) -> list[Path]:
    """The same of all workers that one front end has started."""
    return _in_rank_order(f"{owner}-*-rank*{_DRAFT_SUFFIX if draft else _SUFFIX}")


def is_draft(path: Path) -> bool:
    """Whether these are the counters of a draft model."""
    return path.name.endswith(_DRAFT_SUFFIX)


def rank_of(path: Path) -> int:
    """The rank in the file's name, of all of the engine's ranks."""
    return int(path.name.rpartition("-rank")[2].partition(".")[0])


def remove(paths: Iterable[Path]) -> None:
    """Delete them; one that is gone already is fine."""
    for path in paths:
        path.unlink(missing_ok=True)


def remove_owned(owner: str) -> None:
    """Delete all that this owner's processes have left."""
    remove(directory().glob(f"{owner}-*"))


def prepare_directory() -> None:
    """Make it if needed, and delete the files whose owner is dead."""
    directory().mkdir(mode=0o700, exist_ok=True)
    status = directory().lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022 or not stat.S_ISDIR(status.st_mode):
        raise ConfigError(
            f"{directory()} is not a folder of this user alone, so counters cannot be kept there; remove it, or name "
            f"another place for temporary files with TMPDIR=/a/folder"
        )
    directory().chmod(0o700)
    remove(path for path in list(directory().iterdir()) if not _is_alive(path.name.partition("-")[0]))


def _in_rank_order(pattern: str) -> list[Path]:
    return sorted(directory().glob(pattern), key=lambda path: (rank_of(path), path.name))


def _is_alive(process_id: str) -> bool:
    try:
        os.kill(int(process_id), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
