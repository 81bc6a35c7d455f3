"""What work that takes minutes is at: in place on a terminal, line by line on standard error elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def working(console: "Console", text: str) -> Iterator[Callable[[str], None]]:
    """Tell `text`, and what is handed to the yielded function after it."""
    if console.is_terminal:
        with console.status(text) as status:
            yield status.update
        return
    _tell(text)
    yield _tell


def _tell(text: str) -> None:
    print(f"wisp: {text}", file=sys.stderr, flush=True)
