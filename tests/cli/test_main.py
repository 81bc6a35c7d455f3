"""The command as a whole: quick, light, and every error an exit code."""

import os
import subprocess
import sys
from pathlib import Path

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


ROOT = Path(__file__).parents[2]
TRACE, QWEN = ROOT / "demo" / "traces" / "prose.npz", ROOT / "tests" / "allocator" / "configs" / "qwen3-30b-a3b.json"
BUFFERED = """
import sys
from wisp.cli import main
main.app = lambda: (print("in the buffer"), sys.exit(0))
main.main()
"""


def ended_unread(*command, unread):
    """The end of a command whose `unread` streams go into a pipe without a reader; what it wrote into the others."""
    read, write = os.pipe()
    os.close(read)
    streams = {name: write if name in unread else subprocess.PIPE for name in ("stdout", "stderr")}
    try:
        done = subprocess.run(command, **streams, text=True)
    finally:
        os.close(write)
    return done.returncode, done.stdout or "", done.stderr or ""


def as_other_tools_end():
    """By the shell's own word: what a tool that writes without end is told to have ended with."""
    done = subprocess.run(["bash", "-c", "yes | true; echo ${PIPESTATUS[0]}"], capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.parametrize("words", [("--help",), ("plan", QWEN, "--gpu-memory", "24GiB"), ("curve", TRACE, "--json")])
def test_output_that_finds_no_room_is_told_in_one_line(words):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "wisp.cli.main", *map(str, words)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    told = [line for line in done.stderr.splitlines() if not line.startswith("wisp: warning: ")]
    assert (done.returncode, told) == (2, ["wisp: No space left on device; make room there, or write elsewhere"])


@pytest.mark.parametrize("unread", [("stdout",), ("stdout", "stderr")], ids=["stdout", "both"])
@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("simulate", TRACE, "--slots", "8"),
        ("simulate", TRACE, "--slots", "8", "--json"),
        ("curve", TRACE),
        ("plan", QWEN, "--gpu-memory", "24GiB", "--json"),
    ],
    ids=lambda words: words[0].strip("-") + ("-json" if "--json" in words else ""),
)
def test_a_reader_who_goes_ends_a_command_as_it_ends_other_tools(words, unread):
    code, _, err = ended_unread(sys.executable, "-m", "wisp.cli.main", *map(str, words), unread=unread)
    assert code == as_other_tools_end()
    assert err == "" or words[0] == "plan"
    assert "Error" not in err


def test_output_that_waits_in_the_buffer_for_a_reader_who_has_gone_is_dropped():
    code, _, err = ended_unread(sys.executable, "-c", BUFFERED, unread=("stdout",))
    assert (code, err) == (as_other_tools_end(), "")


def test_an_error_that_nobody_reads_ends_as_other_tools_do():
    command = (sys.executable, "-m", "wisp.cli.main", "stats", "http://127.0.0.1:9")
    assert ended_unread(*command, unread=("stderr",))[0] == as_other_tools_end()


def test_an_error_is_told_where_only_the_output_has_no_reader():
    command = (sys.executable, "-m", "wisp.cli.main", "stats", "http://127.0.0.1:9")
    code, _, err = ended_unread(*command, unread=("stdout",))
    assert code == 2
    assert err.startswith("wisp: ")
