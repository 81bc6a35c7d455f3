"""Engines that start at the same time and are measured one after the other, since starting takes longest.

An arm is a program of its own: it builds its engine, calls `wait_for_turn`, measures, and ends with `report`. Run by
hand it does not wait. Whoever runs several (`run_together`) lets one at a time measure, once all have started: the
others hold memory meanwhile, and nothing else. An arm that calls `wait_for_turn` again has its next turn once every
other has had one, so that arms which alternate have the same hours of a noisy machine.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any

READY, REPORT = "ready to be measured", "report: "
TURNS = "WISP_BENCHMARK_TURNS"
SETTLE_SECONDS = 10
CORES = 4


def wait_for_turn() -> None:
    """Return when no other arm is starting or being measured; end with whoever started this one.

    From then on this thread, which steps the engine, runs on the same few cores in every arm: on others the same calls
    were seen to take half as long again.
    """
    if TURNS in os.environ:
        print(READY, flush=True)
        if not sys.stdin.readline():
            raise SystemExit("whoever started this arm has ended, so that it has no turn")
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


def report(found: Any) -> None:
    """Hand over what was measured, as JSON, and keep all memory until it has been looked at."""
    print(REPORT + json.dumps(found), flush=True)
    if TURNS in os.environ:
        sys.stdin.readline()


@dataclass(frozen=True)
class Outcome:
    """What became of an arm: its report, or why there is none."""

    name: str
    report: Any = None
    free_gpu_bytes: int = 0
    """Of the whole device once the arm has ended, the others still there; 0 without a GPU."""
    failed: str | None = None


class _Arm:
    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # `kill` closes it
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, TURNS: "1"},
        )
        self._lines: Queue[str | None] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def line(self, starts: str | tuple[str, ...], deadline: float) -> str:
        """The next line that starts so, or in one of these ways.

        Raises:
            RuntimeError: the arm ended without, or had not said it by the deadline (of `time.monotonic`).
        """
        said = ""
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise RuntimeError(f"not done in time; until then: {said[-600:]}\n{self._last_words()}") from None
            if line is None:
                raise RuntimeError(f"ended with {self._process.wait()}: {self._last_words()}")
            if line.startswith(starts):
                return line
            said += line + "\n"

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Stop it if it has not ended by itself, and wait for it."""
        try:
            self._process.wait(timeout=SETTLE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:]


def run_together(commands: Mapping[str, Sequence[str]], timeout_seconds: float) -> Iterator[Outcome]:
    """Start all commands, measure them in their order, and yield what became of each when it has ended.

    An arm has `timeout_seconds` from the start of all to become ready, and as many again for each of its turns.
    """
    start = time.monotonic()
    deadline = start + timeout_seconds
    arms: list[_Arm] = []
    try:
        for name, command in commands.items():
            arms.append(_Arm(name, command))
        ready = []
        for arm in arms:
            try:
                arm.line(READY, deadline)
                print(f"{arm.name}: ready within {time.monotonic() - start:.0f} s", flush=True)
                ready.append(arm)
            except RuntimeError as error:
                arm.kill()
                yield Outcome(arm.name, failed=str(error))
        turns = deque(ready)
        while turns:
            arm = turns.popleft()
            outcome = _turn(arm, time.monotonic() + timeout_seconds)
            if outcome is None:
                turns.append(arm)
            else:
                yield outcome
    finally:
        for arm in arms:
            arm.kill()


def _turn(arm: _Arm, deadline: float) -> Outcome | None:
    """What has become of an arm by the end of its turn; None if it wants another."""
    try:
        arm.go_on()
        line = arm.line((READY, REPORT), deadline)
        if line.startswith(READY):
            return None
        found = json.loads(line.removeprefix(REPORT))
        arm.go_on()
        arm.end()
    except (RuntimeError, OSError) as error:
        arm.kill()  # it may still be computing, beside the next one
        return Outcome(arm.name, failed=str(error))
    return Outcome(arm.name, found, _free_gpu_bytes())


def _free_gpu_bytes() -> int:
    """What is free once a process that has ended has given everything back, which takes the driver a moment."""
    import torch

    if not torch.cuda.is_available():
        return 0
    free, deadline = 0, time.monotonic() + SETTLE_SECONDS
    while (now := int(torch.cuda.mem_get_info()[0])) != free and time.monotonic() < deadline:
        free = now
        time.sleep(0.5)
    return free
