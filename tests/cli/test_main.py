"""The command as a whole: quick, light, and every error an exit code."""

import subprocess
import sys

import pytest

from wisp import __version__

LIGHT = """
import sys
from wisp.cli.main import main
sys.argv = ["wisp", *{words!r}]
try:
    main()
except SystemExit as end:
    print("code", end.code or 0)
print("heavy", *sorted({{"torch", "vllm", "transformers", "openai"}} & set(sys.modules)))
"""


def run_light(*words):
    command = [sys.executable, "-c", LIGHT.format(words=words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize("words", [("--help",), ("serve", "--help"), ("stats", "--help"), ("verify", "--help")])
def test_help_loads_neither_torch_nor_an_engine(words):
    out, _ = run_light(*words)
    assert "Usage: wisp" in out
    assert out.endswith("code 0\nheavy\n")


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "/no/such/folder", "--expert-slots", "4"),
        ("serve", "some/model", "--expert-slots", "none"),
        ("serve", "some/model", "--expert-slots", "4", "--policy", "mru"),
        ("serve", "some/model", "--expert-slots", "4", "--cpu-offload-gb", "4"),
        ("verify", "/no/such/folder", "--slots", "4"),
        ("stats", "http://127.0.0.1:9"),
    ],
)
def test_a_wrong_argument_is_told_before_anything_heavy_is_loaded(words):
    out, err = run_light(*words)
    assert out == "code 2\nheavy\n"
    assert err.startswith("wisp: ")
    assert err.count("\n") == 1


def test_a_missing_gpu_is_told_before_vllm_is_loaded():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    out, err = run_light("serve", "some/model", "--expert-slots", "4", "--device", "cuda")
    assert out == "code 2\nheavy torch\n"
    assert "leave --device out" in err


def test_version_and_an_empty_call(wisp):
    assert wisp("--version").out == f"wisp {__version__}\n"
    ended = wisp()
    assert ended.code == 2
    assert "Commands:" in ended.err


def test_an_unknown_command_is_a_usage_error(wisp):
    ended = wisp("evict")
    assert ended.code == 2
    assert "evict" in ended.err


def test_ctrl_c_ends_without_a_traceback(wisp, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("wisp.cli.served_counters.scrape", interrupt)
    ended = wisp("stats", "localhost:8000")
    assert ended.code == 130
    assert "Traceback" not in ended.err
