"""The script until the command line is there: a missing package is told, and ends it with 2, as 1 is a difference."""

import subprocess
import sys

import pytest

WITHOUT = """
import sys
from wisp.cli.start import main
sys.modules[{package!r}] = None  # as if it were not installed
sys.argv = ["wisp", *{words!r}]
main()
"""

INTERRUPTED = """
import sys
from wisp.cli.start import main

class Typer:
    def __getattr__(self, name):
        raise KeyboardInterrupt

sys.modules["typer"] = Typer()
main()
"""


def ended(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(("words", "package"), [(["--help"], "typer"), (["stats", "http://127.0.0.1:9"], "httpx")])
def test_a_missing_package_is_told_with_the_remedy(words, package):
    code, told = ended(WITHOUT.format(words=words, package=package))
    assert code == 2
    assert told.startswith(f"wisp: the command line needs {package}")
    assert "pip install 'wisp-moe[cli]'" in told
    assert told.count("\n") == 1


def test_a_package_that_is_not_the_command_lines_is_an_error_as_ever():
    code, told = ended(WITHOUT.format(words=["--help"], package="numpy"))
    assert code == 1
    assert "ModuleNotFoundError" in told


def test_ctrl_c_while_it_is_loaded_leaves_no_traceback():
    assert ended(INTERRUPTED) == (130, "")
