"""Work that takes minutes says what it is at, where nobody sees a terminal, too."""

import io

from rich.console import Console

from wisp.cli.progress import working


def test_without_a_terminal_progress_is_lines_on_standard_error(capsys):
    console = Console(file=io.StringIO())
    with working(console, "starting the engine") as tell:
        tell("copies out of host memory")
    assert capsys.readouterr().err == "wisp: starting the engine\nwisp: copies out of host memory\n"
    assert console.file.getvalue() == "", "the output is for what was asked"


def test_on_a_terminal_it_is_shown_in_place(capsys):
    console = Console(file=io.StringIO(), force_terminal=True)
    with working(console, "starting the engine") as tell:
        tell("copies out of host memory")
    assert "copies out of host memory" in console.file.getvalue()
    assert capsys.readouterr().err == ""
