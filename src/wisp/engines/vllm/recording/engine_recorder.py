"""Records what a running engine routes to and which KV blocks it refers to, as seen from the engine's core.

The scheduler is in the core, the routing in the workers, which may be other processes. Both count the steps that
they see from the same moment on, in the same order, and so agree on which is which; the tokens of each step, which
both know, are compared.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp.engines.vllm.recording import worker_recorder
from wisp.engines.vllm.recording.scheduler_recorder import SchedulerRecorder
from wisp.engines.vllm.recording.worker_recorder import RecordedRouting, RecordingStarted
from wisp.errors import RecordingError, UnsupportedError
from wisp.recording import Recording
from wisp.trace import RoutingTrace
from wisp.units import format_bytes

_UNTOLD = (
    "so it cannot be told which routing belongs to which step, and the recording ends; please report this with your "
    "vLLM flags"
)


@dataclass(frozen=True)
class RecordingLimits:
    """When a recording that nobody takes ends by itself."""

    held_bytes: int
    """Host memory for what waits to be taken and for the names of blocks seen."""
    idle_seconds: float
    """Between one `take` and the next."""


class EngineRecorder:
    """One recording, from its creation to `stop`. To be called between two steps, as vLLM calls utility methods."""

    def __init__(self, core: Any, limits: RecordingLimits | None = None) -> None:
        """Record from the next step on that this `EngineCore` schedules; without limits, as long as memory lasts.

        Raises:
            UnsupportedError: nothing is paged, or routing cannot be read where it is decided.
        """
        self.ended: str | None = None
        """Why it has ended by itself, if it has; what was recorded until then can still be taken."""
        self._executor, self._limits = core.model_executor, limits
        self._call_seconds = self._worker_seconds = 0.0
        self._last_taken = time.monotonic()
        with self.clocked():
            self._started = self._start_workers()
            self._scheduler = SchedulerRecorder(core.scheduler, after_step=self._check_limits)
        self._ranks: int = core.vllm_config.parallel_config.tensor_parallel_size
        self._waiting = [started.no_steps() for started in self._started]  # read, not taken; by pipeline stage

    @property
    def seconds(self) -> float:
        """What recording has cost the engine so far, at most: all hooks and all calls, one after the other."""
        return self._scheduler.seconds + self._worker_seconds + self._call_seconds

    @property
    def steps(self) -> int:
        """Scheduled since the recording began, running ones included."""
        return self._scheduler.steps

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody has taken anything for longer than the limits allow."""
        return self._limits is not None and time.monotonic() - self._last_taken > self._limits.idle_seconds

    def take(self, *, last: bool) -> Recording | None:
        """What was recorded since the last call, None if no step was.

        The step that ended last is kept back, for what is still to come of it; unless this is the `last` call, which
        waits for all steps that run and takes everything.

        Raises:
            RecordingError: the core and its workers do not agree on the steps.
        """
        with self.clocked():
            self._last_taken = time.monotonic()
            if self.ended is None:
                self._read_workers(wait=last)
            scheduled, ran = self._scheduler.waiting_steps, min(stage.steps for stage in self._waiting)
            if last and self.ended is None and ran != scheduled:
                raise RecordingError(f"{scheduled} steps were scheduled but {ran} have run; {_UNTOLD}")
            steps = min(scheduled, ran) - (not last)
            return self._piece(steps, last=last) if steps > 0 else None

    def stop(self) -> None:
        """Leave the engine as it was; what was not taken is dropped."""
        self._scheduler.stop()
        if self.ended is None:
            self._executor.collective_rpc(worker_recorder.stop)

    def _piece(self, steps: int, *, last: bool) -> Recording:
        routing = RoutingTrace.stack([stage.select(np.arange(stage.steps) < steps) for stage in self._waiting])
        self._waiting = [stage.select(np.arange(stage.steps) >= steps) for stage in self._waiting]
        scheduled = self._scheduler.take(steps, with_rest=last)
        assert routing.tokens is not None
        if differing := np.flatnonzero(routing.tokens != scheduled.tokens).tolist():
            was, ran = int(scheduled.tokens[differing[0]]), int(routing.tokens[differing[0]])
            raise RecordingError(f"a step of {was} tokens was scheduled but one of {ran} has run; {_UNTOLD}")
        return Recording(
            routing,
            scheduled.prefill_tokens,
            scheduled.requests,
            self._started[0].expert_bytes * self._ranks,
            scheduled.kv,
        )

    def _check_limits(self) -> None:
        """After a step was scheduled, before it runs: end a recording that nobody takes."""
        if self._limits is None:
            return
        held = self._scheduler.nbytes + self._scheduler.waiting_steps * sum(s.step_bytes for s in self._started)
        if self.is_abandoned:
            reason = f"it was not taken for {self._limits.idle_seconds:.0f} s"
        elif held > self._limits.held_bytes:
            reason = f"it holds {format_bytes(held)}, of {format_bytes(self._limits.held_bytes)} that it may"
        else:
            return
        with self.clocked():
            self._read_workers(wait=True)  # the step that was just scheduled has not run, and is dropped
            self.stop()
            self.ended = reason

    def _start_workers(self) -> list[RecordingStarted]:
        replies = self._executor.collective_rpc(worker_recorder.start)
        if reasons := [reply for reply in replies if isinstance(reply, str)]:
            self._executor.collective_rpc(worker_recorder.stop)
            raise UnsupportedError(reasons[0])
        return [reply for reply in replies if reply is not None]

    def _read_workers(self, *, wait: bool) -> None:
        replies = self._executor.collective_rpc(worker_recorder.take, args=(wait,))
        if reasons := [reply for reply in replies if isinstance(reply, str)]:
            raise RecordingError(reasons[0])
        pieces: list[RecordedRouting] = [reply for reply in replies if reply is not None]
        self._waiting = [
            RoutingTrace.join([stage, piece.routing]) for stage, piece in zip(self._waiting, pieces, strict=True)
        ]
        self._worker_seconds = max(piece.seconds for piece in pieces)

    @contextmanager
    def clocked(self) -> Iterator[None]:
        """Count what is done within as a cost of recording."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._call_seconds += time.perf_counter() - start
