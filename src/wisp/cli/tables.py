"""Tables at their full width, since a number that is cut is none: a terminal that is too narrow wraps their lines."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_UNBOUNDED = 1 << 16


def show(console: "Console", *tables: Any) -> None:
    """Print them, one below the other."""
    console.width = max(console.width, *(_full_width(console, table) for table in tables))
    console.print(*tables)


def show_in_turn(console: "Console", tables: Iterator[Any]) -> None:
    """Show each as it comes: in the place of the one before if the terminal has room for it, and below it if not."""
    from rich.live import Live

    table = next(tables)
    if not _has_room(console, table):
        show(console, table)
        for table in tables:
            show(console, table)
        return
    with Live(table, console=console, auto_refresh=False) as live:
        for table in tables:
            live.update(table, refresh=True)


def _full_width(console: "Console", table: Any) -> int:
    return console.measure(table, options=console.options.update(max_width=_UNBOUNDED)).maximum


def _has_room(console: "Console", table: Any) -> bool:
    lines = len(console.render_lines(table)) + 1  # where the cursor waits
    return console.is_terminal and _full_width(console, table) <= console.width and lines < console.height
