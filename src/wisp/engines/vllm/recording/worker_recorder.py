"""Records the routing of one worker. The engine's core calls the functions here on all of its workers at once.

Tensor-parallel ranks route alike, so the first of each pipeline stage records, and the others answer None.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp.engines.vllm.taps.paged_worker import is_first_rank, paging_of, source_of
from wisp.engines.vllm.taps.routing_source import RoutingSource
from wisp.engines.vllm.taps.worker_tap import WorkerTap
from wisp.errors import RecordingError, WispError
from wisp.trace import RoutingTrace

_PLACE = "_wisp_recorder"


@dataclass(frozen=True)
class RecordingStarted:
    """What a worker says of its layers when a recording starts."""

    layers: int
    num_experts: int
    expert_bytes: int

    @property
    def step_bytes(self) -> int:
        """Host memory for what a step needs."""
        return self.layers * -(-self.num_experts // 8)

    def no_steps(self) -> RoutingTrace:
        """Where the worker's trace begins."""
        bits = np.zeros((self.layers, 0, -(-self.num_experts // 8)), dtype=np.uint8)
        return RoutingTrace(bits, self.num_experts, np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class RecordedRouting:
    """What a worker's layers needed in consecutive steps."""

    routing: RoutingTrace
    """Its tokens are those that the worker was told to run, to be compared with what was scheduled."""
    seconds: float
    """What the hooks have cost this worker so far."""


class WorkerRecorder:
    """One recording of one worker, from its creation to `stop`."""

    def __init__(self, worker: Any, source: RoutingSource) -> None:
        self._source = source
        self._tokens: list[int] = []
        self._tap = WorkerTap(worker, self._ran)

    def _ran(self, tokens: int) -> None:
        self._tokens.append(tokens)
        self._source.ran()

    def take(self, *, wait: bool) -> RecordedRouting:
        """The steps since the last call that have ended; with `wait`, all."""
        bits = self._source.take(wait=wait)
        steps = bits.shape[1]
        if steps > len(self._tokens) or (wait and steps < len(self._tokens)):
            raise RecordingError(
                f"the layers have counted {steps} steps where the worker ran {len(self._tokens)}, so it cannot be told "
                f"which routing belongs to which step; record with --enforce-eager and decide set to host, and please "
                f"report this with your vLLM flags"
            )
        tokens = np.array(self._tokens[:steps], dtype=np.int64)
        del self._tokens[:steps]
        return RecordedRouting(RoutingTrace(bits, self._source.num_experts, tokens), self._tap.seconds)

    def stop(self) -> None:
        """Leave the worker as it was; what was not taken is dropped."""
        self._source.stop()
        self._tap.stop()


def start(wrapper: Any) -> RecordingStarted | str | None:
    """Record from the next step on; the text of the error if that cannot be. One that was left running is dropped."""
    worker = wrapper.worker
    stop(wrapper)
    if not is_first_rank(worker):
        return None
    try:
        paging = paging_of(worker)
        source = source_of(paging)
    except WispError as error:  # it would not cross to another process as what it is
        return str(error)
    setattr(worker, _PLACE, WorkerRecorder(worker, source))
    return RecordingStarted(len(paging.layers), source.num_experts, paging.layers[0].store.expert_bytes)


def take(wrapper: Any, wait: bool) -> RecordedRouting | str | None:
    """What was recorded since the last call; the text of an error; None of a worker that does not record."""
    recorder: WorkerRecorder | None = getattr(wrapper.worker, _PLACE, None)
    try:
        return None if recorder is None else recorder.take(wait=wait)
    except WispError as error:
        return str(error)


def stop(wrapper: Any) -> None:
    """End the recording, if there is one."""
    recorder: WorkerRecorder | None = vars(wrapper.worker).pop(_PLACE, None)
    if recorder is not None:
        recorder.stop()
