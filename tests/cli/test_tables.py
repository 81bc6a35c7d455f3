"""Tables: no number is cut, and each is shown once it is there."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from wisp.cli.tables import show, show_in_turn

NUMBER = "23,000,000,000"


def table_of(*rows, columns=8):
    table = Table()
    for _ in range(columns):
        table.add_column(no_wrap=True)
    for row in rows:
        table.add_row(*[row] * columns)
    return table


@pytest.mark.parametrize("width", [1, 30, 80, 300])
def test_no_number_is_cut(width):
    console = Console(file=io.StringIO(), width=width)
    show(console, table_of("1", columns=1), table_of(NUMBER))
    assert console.file.getvalue().count(NUMBER) == 8


@pytest.mark.parametrize(
    ("terminal", "height", "width"),
    [(False, 50, 200), (True, 8, 200), (True, 50, 40)],
    ids=["a pipe", "a low terminal", "a narrow terminal"],
)
def test_tables_without_room_to_replace_each_other_follow_each_other(terminal, height, width):
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=terminal)
    shown = []

    def tables():
        for number in range(3):
            yield table_of(*[NUMBER] * 5, f"the {number}th")
            shown.append(console.file.getvalue())

    show_in_turn(console, tables())
    for number, text in enumerate(shown):
        assert f"the {number}th" in text, "before the next one is asked for"
        assert "\x1b[1A" not in text


def test_a_terminal_with_room_shows_each_in_the_place_of_the_one_before():
    console = Console(file=io.StringIO(), width=200, height=50, force_terminal=True)
    show_in_turn(console, iter([table_of("first"), table_of("second")]))
    assert "\x1b[1A" in console.file.getvalue(), "the cursor goes up"
