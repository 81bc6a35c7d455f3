"""How an error of ours in an engine process reaches the user.

vLLM tells its front end that an engine did not start, but not why. `wisp serve` therefore names a file in the
environment, which its processes inherit; whoever fails writes the reason there.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wisp.errors import WispError

FILE_VARIABLE = "WISP_FAILURE_FILE"


@contextmanager
def handed_over() -> Iterator[None]:
    """Write an error of wisp's own that leaves the block where `wisp serve` looks for it; it goes on its way."""
    try:
        yield
    except WispError as error:
        path = os.environ.get(FILE_VARIABLE)
        if path:
            with suppress(OSError):  # on another machine than `wisp serve`, to which Ray hands its environment on
                Path(path).write_text(str(error))
        raise


def read(path: Path) -> str | None:
    """The reason that some process has written; None if there is none."""
    return (path.read_text().strip() or None) if path.is_file() else None
