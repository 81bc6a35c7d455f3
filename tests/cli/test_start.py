"""The script where packages are missing: what to install, and exit code 2, since 1 says that an output differs."""

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


def ended(*words, package):
    command = [sys.executable, "-c", WITHOUT.format(words=words, package=package)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(("words", "package"), [(["--help"], "typer"), (["stats", "http://127.0.0.1:9"], "httpx")])
def test_a_missing_package_is_told_with_the_remedy(words, package):
    code, told = ended(*words, package=package)
    assert code == 2
    assert told.startswith(f"wisp: the command line needs {package}")
    assert "pip install 'wisp-moe[cli]'" in told
    assert told.count("\n") == 1


def test_a_package_that_is_not_the_command_lines_is_an_error_as_ever():
    code, told = ended("--help", package="numpy")
    assert code == 1
    assert "ModuleNotFoundError" in told
