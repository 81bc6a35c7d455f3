"""`benchmarks/on_gpu.py` runs steps in their order, ends what takes too long, and leaves nothing running."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

WAITS = """-c 'import pathlib, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
pathlib.Path("{folder}", "started").touch()
signal.sigwait([signal.SIGINT])
pathlib.Path("{folder}", "ended").touch()'"""


@pytest.fixture
def run(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Mapping[str, tuple[object, ...]], float], dict[str, str]]:
    """`run(steps, minutes)`: how each step has ended."""
    module = script("on_gpu.py")
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)

    def run(steps: Mapping[str, tuple[object, ...]], minutes: float) -> dict[str, str]:
        monkeypatch.setattr(module, "STEPS", {name: module.Step(*step) for name, step in steps.items()})
        made = module.Run(list(steps), tmp_path, minutes)
        made.finish()
        return made.ended

    return run


def test_every_step_waits_for_steps_that_are_listed_before_it(script):
    steps = script("on_gpu.py").STEPS
    names = list(steps)
    for name, step in steps.items():
        assert set(step.after) <= set(names[: names.index(name)])


def test_a_step_starts_when_what_it_waits_for_has_ended(run, tmp_path):
    says = """-c 'open("{folder}/order", "a").write("%s")'"""
    ended = run({"a": (says % "a", 30), "b": (says % "b", 30, ("a",)), "c": ("-c 'exit(3)'", 30, ("b",))}, 1)
    assert (tmp_path / "order").read_text() == "ab"
    assert [how.split(",")[0] for how in ended.values()] == ["passed", "passed", "failed with 3"]


def test_a_step_that_takes_too_long_may_end_what_it_has_started(run, tmp_path):
    ended = run({"slow": (WAITS, 5), "long": ("-c pass", 600)}, 1)
    assert (tmp_path / "started").exists()
    assert (tmp_path / "ended").exists()
    assert ended["slow"].startswith("ended: it took too long")
    assert ended["long"].startswith("left out: it may take 600 s")


def test_no_step_goes_on_when_the_run_is_interrupted(run, tmp_path, monkeypatch):
    real = time.sleep

    def sleep(_seconds: float) -> None:
        monkeypatch.setattr(time, "sleep", real)  # whoever waits for a process sleeps too
        while not (tmp_path / "started").exists():
            os.sched_yield()
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        run({"slow": (WAITS, 60)}, 2)
    assert (tmp_path / "ended").exists()
