"""Benchmarks' engines that start together and are measured in turn; small programs stand for engines."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TURNS = "WISP_BENCHMARK_TURNS"
SHARED = Path(__file__).parents[2] / "benchmarks" / "shared"
ARM = f"""
import sys, time
sys.path.append({str(SHARED)!r})
from together import report, wait_for_turn
name, start_seconds = sys.argv[1], float(sys.argv[2])
time.sleep(start_seconds)
ready = time.monotonic()
wait_for_turn()
begin = time.monotonic()
time.sleep(0.2)
print("noise", flush=True)
report([name, ready, begin, time.monotonic()])
"""


@pytest.fixture
def together(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("shared/together.py")


def arm(name: str, start_seconds: float) -> list[str]:
    return [sys.executable, "-c", ARM, name, str(start_seconds)]


def test_arms_are_measured_one_after_the_other_once_all_have_started(together: ModuleType) -> None:
    outcomes = list(together.run_together({"slow": arm("slow", 0.6), "fast": arm("fast", 0)}, 60))
    (slow, slow_ready, slow_begin, slow_end), (fast, fast_ready, fast_begin, _) = (each.report for each in outcomes)
    assert (slow, fast) == ("slow", "fast")
    assert fast_ready < slow_ready <= slow_begin < slow_end <= fast_begin


def test_arms_that_want_several_turns_take_them_alternately(together: ModuleType) -> None:
    code = f"""
import sys, time
sys.path.append({str(SHARED)!r})
from together import report, wait_for_turn
turns = []
for _ in range(int(sys.argv[1])):
    wait_for_turn()
    begin = time.monotonic()
    time.sleep(0.1)
    turns.append([begin, time.monotonic()])
report(turns)
"""
    commands = {name: [sys.executable, "-c", code, turns] for name, turns in {"a": "3", "b": "3", "c": "1"}.items()}
    outcomes = {outcome.name: outcome.report for outcome in together.run_together(commands, 60)}
    order = sorted((begin, end, name) for name, turns in outcomes.items() for begin, end in turns)
    assert "".join(name for _, _, name in order) == "abcabab"
    assert all(end <= begin for (_, end, _), (begin, _, _) in pairwise(order))


def test_an_arm_that_fails_says_why_and_leaves_the_others_alone(together: ModuleType) -> None:
    commands = {"broken": [sys.executable, "-c", "raise SystemExit('no room')"], "whole": arm("whole", 0)}
    broken, whole = together.run_together(commands, 60)
    assert "ended with 1" in broken.failed
    assert "no room" in broken.failed
    assert whole.report[0] == "whole"


def test_an_arm_that_breaks_in_its_turn_says_why(together: ModuleType) -> None:
    code = ARM.replace('print("noise"', "raise SystemExit('lost the device')\nprint(\"noise\"")
    lost, whole = together.run_together({"lost": [sys.executable, "-c", code, "a", "0"], "whole": arm("whole", 0)}, 60)
    assert "lost the device" in lost.failed
    assert whole.report[0] == "whole"


def test_an_arm_that_takes_too_long_is_given_up(together: ModuleType) -> None:
    start = time.monotonic()
    late, whole = together.run_together({"late": arm("late", 60), "whole": arm("whole", 0)}, 3)
    assert "not done in time" in late.failed
    assert whole.report[0] == "whole"
    assert time.monotonic() - start < 30


def test_an_arm_that_is_given_up_in_its_turn_computes_no_more_beside_the_next(
    together: ModuleType, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    code = ARM.replace(
        'print("noise"', f"while True: open({str(beats)!r}, 'a').write('.'); time.sleep(0.02)\nprint(\"noise\""
    )
    outcomes = together.run_together({"endless": [sys.executable, "-c", code, "a", "0"], "whole": arm("whole", 0)}, 3)
    assert "not done in time" in next(outcomes).failed
    until_then = beats.stat().st_size
    assert until_then > 0
    assert next(outcomes).report[0] == "whole"
    assert beats.stat().st_size == until_then


def test_an_arm_whose_turn_cannot_come_measures_nothing() -> None:
    alone = subprocess.run(
        arm("orphan", 0), stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, TURNS: "1"}
    )
    assert alone.returncode == 1
    assert "report" not in alone.stdout


def test_a_command_that_cannot_be_started_leaves_no_arm_behind(
    together: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = {"whole": arm("whole", 0), "missing": [str(tmp_path / "no such program")]}
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def remember(*args: Any, **kwargs: Any) -> Any:
        started.append(popen(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", remember)
    with pytest.raises(FileNotFoundError):
        list(together.run_together(commands, 60))
    assert [process.poll() for process in started] == [-signal.SIGKILL]
