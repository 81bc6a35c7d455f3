"""Records the routing of one worker. The engine's core calls the functions here on all of its workers at once.

Tensor-parallel ranks route alike, so the first of each pipeline stage records, and the others answer None.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp.engines.vllm.paging import WorkerPaging
from wisp.engines.vllm.routing_source import HostRouting, RoutingSource
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import UnsupportedError, WispError
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
        self._seconds = 0.0
        self._worker, self._source = worker, source
        self._tokens: list[int] = []
        self._execute = worker.execute_model
        worker.execute_model = self._run  # shadows the method

    def _run(self, scheduler_output: Any) -> Any:
        result = self._execute(scheduler_output)
        start = time.perf_counter()
        if scheduler_output.total_num_scheduled_tokens:
            self._tokens.append(scheduler_output.total_num_scheduled_tokens)
            self._source.ran()
        self._seconds += time.perf_counter() - start
        return result

    def take(self, *, wait: bool) -> RecordedRouting:
        """The steps since the last call that have ended; with `wait`, all."""
        bits = self._source.take(wait=wait)
        steps = bits.shape[1]
        if steps > len(self._tokens) or (wait and steps < len(self._tokens)):
            raise WispError(
                f"the layers have counted {steps} steps where the worker ran {len(self._tokens)}, so it cannot be told "
                f"which routing belongs to which step; record with --enforce-eager and decide set to host, and please "
                f"report this with your vLLM flags"
            )
        tokens = np.array(self._tokens[:steps], dtype=np.int64)
        del self._tokens[:steps]
        return RecordedRouting(RoutingTrace(bits, self._source.num_experts, tokens), self._seconds)

    def stop(self) -> None:
        """Leave the worker as it was; what was not taken is dropped."""
        self._source.stop()
        del self._worker.execute_model


def start(wrapper: Any) -> RecordingStarted | str | None:
    """Record from the next step on; the text of the error if that cannot be. One that was left running is dropped."""
    worker = wrapper.worker
    stop(wrapper)
    if not _records(worker):
        return None
    try:
        paging = _paging_of(worker)
        source = _source_of(paging)
    except WispError as error:  # it would not cross to another process as what it is
        return str(error)
    setattr(worker, _PLACE, WorkerRecorder(worker, source))
    return RecordingStarted(len(paging.layers), source.num_experts, paging.stores[0].expert_bytes)


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


def _records(worker: Any) -> bool:
    ranks: int = worker.vllm_config.parallel_config.tensor_parallel_size
    return bool(worker.rank % ranks == 0)


def _paging_of(worker: Any) -> WorkerPaging:
    settings = WispSettings.of(worker.vllm_config)
    paging = None if settings is None else WorkerPaging.of(worker.vllm_config, settings)
    if paging is None or not paging.layers:
        raise UnsupportedError("this engine pages nothing, so there is no routing to record; set expert_slots")
    return paging


def _source_of(paging: WorkerPaging) -> RoutingSource:
    if paging.in_graph is not None:
        raise UnsupportedError(
            "where the device decides, no plan reaches the host, so routing cannot be recorded yet; "
            "set decide to host and add --enforce-eager"
        )
    return HostRouting([paging.pagers[place] for place in range(len(paging.layers))])
