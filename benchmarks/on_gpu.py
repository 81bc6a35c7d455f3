"""What needs one GPU, in one command: timings alone, and beside the soak what only has to be right.

    python benchmarks/on_gpu.py --folder /tmp/wisp-on-gpu [--minutes 28] [--only soak formats]

Logs and results go to the folder. A step that would take longer than is left of `--minutes` is left out, and said so.
The table at the end has each step's exit code and seconds; the command ends with 1 if one failed or was left out.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
POLL_SECONDS = 1.0
END_SECONDS = 30
"""In which a step that is ended may end what it has started."""

console = Console(highlight=False)


@dataclass(frozen=True)
class Step:
    """A command, `{folder}` in it being where its results go, and what has to have ended before it starts."""

    command: str
    seconds: int
    """After which it is ended; about one and a half times what it takes on an H200 with 16 cores."""
    after: tuple[str, ...] = ()


TESTS = "-m pytest -q -p no:cacheprovider"
ISO_VRAM = "benchmarks/iso_vram/run.py --timeout 240 --results {folder}/iso_vram.json --call {call} --groups"
STEPS: Mapping[str, Step] = {
    "device": Step(f"{TESTS} tests/gpu/test_device.py tests/gpu/test_resize.py", 120),
    "page_cost": Step("benchmarks/page_cost/run.py --output {folder}/page_cost.json", 60, ("device",)),
    "arenas": Step('benchmarks/arenas/run.py --machine "one GPU" --output {folder}/arenas.json', 60, ("page_cost",)),
    "iso_resident": Step(f"{ISO_VRAM} vllm-resident:67+wisp:67 --rounds 5", 300, ("arenas",)),
    "iso_paged": Step(f"{ISO_VRAM} wisp:23,32,10,13.4,16.7,44 --profile-prefill", 300, ("iso_resident",)),
    "iso_uva": Step(f"{ISO_VRAM} vllm-uva:23+vllm-uva:32+vllm-uva:44", 420, ("iso_paged",)),
    "iso_prefetch": Step(f"{ISO_VRAM} vllm-prefetch:32", 300, ("iso_uva",)),
    "soak": Step(
        'benchmarks/soak/run.py --decided-on device --machine "one GPU" --results {folder}/soak.json '
        "--kv-cache-memory-bytes 67108864 --gpu-memory-utilization 0.05",
        840,
        ("iso_prefetch",),
    ),
    "formats": Step(
        'benchmarks/formats/run.py --machine "one GPU" --at-once 10 --seconds 240 --output {folder}/formats.json',
        900,
        ("iso_prefetch",),
    ),
    "models": Step("benchmarks/models/run.py --jobs 3 --results {folder}/models.json", 900, ("iso_prefetch",)),
    "compile_cache": Step(f"{TESTS} tests/gpu/test_compile_cache.py", 420, ("iso_prefetch",)),
    "start_plan": Step(f"{TESTS} tests/gpu/test_start_plan.py", 400, ("soak", "formats", "models", "compile_cache")),
    "server": Step(f"{TESTS} tests/gpu/test_server.py", 420, ("start_plan",)),
    "recording": Step(f"{TESTS} tests/gpu/test_recording.py", 200, ("server",)),
    "two_nodes": Step("benchmarks/parallel/run.py --two-nodes --out {folder}/parallel.json", 400, ("recording",)),
    "load_time": Step("benchmarks/load_time/run.py --output {folder}/load_time.json", 480, ("two_nodes",)),
    "shapes": Step("benchmarks/shapes/run.py --results {folder}/shapes.json", 900, ("load_time",)),
    "plan_check": Step("benchmarks/plan_check/run.py --results {folder}/plan_check.json", 600, ("shapes",)),
}
"""In their order. What is timed runs alone, and so does the start plan, which measures the GPU's memory."""


class Run:
    """The steps of one call: what still waits, what runs, and how each has ended."""

    def __init__(self, names: Sequence[str], folder: Path, minutes: float) -> None:
        self.ended: dict[str, str] = {}
        self._waiting, self._folder = list(names), folder
        self._running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        self._deadline = time.monotonic() + 60 * minutes
        self._call = time.strftime("%Y-%m-%dT%H:%M", time.gmtime())

    def finish(self) -> None:
        """Run them all, in their order; none goes on when this is interrupted."""
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background ignore it, and so steps
        try:
            while self._waiting or self._running:
                for name in list(self._waiting):
                    if not any(before in self._waiting or before in self._running for before in _all_before(name)):
                        self._waiting.remove(name)
                        self._start(name)
                time.sleep(POLL_SECONDS)
                for name in list(self._running):
                    self._look_at(name)
        finally:
            for process, _ in self._running.values():
                _stop(process)

    def _start(self, name: str) -> None:
        step, left = STEPS[name], self._deadline - time.monotonic()
        if step.seconds > left:
            self._end(name, f"left out: it may take {step.seconds} s, and {max(0.0, left):.0f} s are left")
            return
        command = [part.format(folder=self._folder, call=self._call) for part in shlex.split(step.command)]
        variables = {**os.environ, "PYTHONPATH": _python_path()}
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=variables, stdout=log, stderr=log, start_new_session=True
            )
        self._running[name] = process, time.monotonic()

    def _look_at(self, name: str) -> None:
        process, start = self._running[name]
        seconds, code = time.monotonic() - start, process.poll()
        if code is None and seconds <= STEPS[name].seconds:
            return
        if code is None:
            _stop(process)
        del self._running[name]
        how = "ended: it took too long" if code is None else "passed" if code == 0 else f"failed with {code}"
        self._end(name, f"{how}, {seconds:.0f} s")

    def _end(self, name: str, how: str) -> None:
        self.ended[name] = how
        console.print(f"{name}: {how}", markup=False)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a step as Ctrl-C does, since a server in a session of its own is ended by the step alone; then by force."""
    with suppress(ProcessLookupError):  # nothing is left of it
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _all_before(name: str) -> set[str]:
    """What a step waits for, and what that waits for."""
    before = set(STEPS[name].after)
    return before.union(*map(_all_before, before))


def _python_path() -> str:
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), *filter(None, [given])])


def main() -> int:
    """Run what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for logs and results")
    parser.add_argument("--minutes", type=float, default=120, help="that all of it may take")
    parser.add_argument("--only", nargs="+", default=list(STEPS), choices=list(STEPS), metavar="STEP")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():  # the tests would be skipped, and count as passed
        parser.error("PyTorch finds no GPU here")
    options.folder.mkdir(parents=True, exist_ok=True)
    run = Run(options.only, options.folder.resolve(), options.minutes)
    run.finish()
    table = Table("step", "how it ended")
    for name, how in run.ended.items():
        table.add_row(name, how)
    console.print(table)
    return int(any(not how.startswith("passed") for how in run.ended.values()))


if __name__ == "__main__":
    sys.exit(main())
