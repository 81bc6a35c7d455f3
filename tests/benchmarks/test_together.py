"""Benchmarks' engines that start together and are measured in turn; small programs stand for engines."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

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
