"""How deep references to experts reach, counted in a worker while it serves. The core calls the functions here.

Where the device decides, a worker follows its ring by itself (`WorkerPaging.routing`), and is only asked.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from wisp.engines.vllm.taps.paged_worker import is_first_rank, paging_of, source_of
from wisp.engines.vllm.taps.routing_source import RoutingSource
from wisp.engines.vllm.taps.worker_tap import WorkerTap
from wisp.errors import WispError
from wisp.workingset.curve import MissCurve
from wisp.workingset.histogram import ExpertHistogram

_PLACE = "_wisp_expert_meter"
_COUNT_STEPS = 64
"""Steps read from the source at a time."""


@dataclass(frozen=True)
class ExpertDepths:
    """What a worker's meter says."""

    curve: MissCurve
    """Of all its layers together, each with the same number of slots."""
    layers: int
    expert_slots: int
    seconds: float
    """That metering has cost the worker so far."""
    lost_steps: int = 0
    """That the device has overwritten before they were read, so that they count in no curve."""


class ExpertMeter:
    """The decayed histogram of one worker's layers, from its creation to `stop`."""

    def __init__(self, worker: Any, source: RoutingSource, layers: int) -> None:
        self.layers = layers
        self._source = source
        self._histogram = ExpertHistogram(layers, source.num_experts)
        self._waiting = 0
        self._tap = WorkerTap(worker, self._ran)

    def _ran(self, _tokens: int) -> None:
        self._source.ran()
        self._waiting += 1
        if self._waiting >= _COUNT_STEPS:
            self._count(wait=False)

    def _count(self, *, wait: bool) -> None:
        bits = self._source.take(wait=wait)
        self._waiting -= bits.shape[1]
        members = np.unpackbits(bits, axis=2, count=self._source.num_experts).view(np.bool_)
        for step in range(bits.shape[1]):
            self._histogram.observe(members[:, step])

    def read(self, expert_slots: int) -> ExpertDepths:
        """As of the last step that has ended."""
        self._count(wait=False)
        return ExpertDepths(MissCurve.total(self._histogram.curves()), self.layers, expert_slots, self._tap.seconds)

    def stop(self) -> None:
        """Leave the worker as it was."""
        self._source.stop()
        self._tap.stop()


def start(wrapper: Any) -> str | None:
    """Meter from the next step on, if that is not done yet; the text of the error if it cannot be."""
    worker = wrapper.worker
    if not is_first_rank(worker) or hasattr(worker, _PLACE):
        return None
    try:
        paging = paging_of(worker)
        if paging.in_graph is None:
            setattr(worker, _PLACE, ExpertMeter(worker, source_of(paging), len(paging.layers)))
    except WispError as error:  # it would not cross to another process as what it is
        return str(error)
    return None


def read(wrapper: Any) -> ExpertDepths | None:
    """What the worker has counted; None of a rank that is not asked."""
    worker = wrapper.worker
    if not is_first_rank(worker):
        return None
    paging = paging_of(worker)
    meter: ExpertMeter | None = getattr(worker, _PLACE, None)
    if meter is not None:
        return meter.read(paging.slots)
    assert paging.routing is not None, "metering has begun, so the warm-up is over"
    curve = MissCurve.total(paging.routing.curves())
    return ExpertDepths(curve, len(paging.layers), paging.slots, seconds=0.0, lost_steps=paging.routing.lost)


def stop(wrapper: Any) -> None:
    """End metering, if there is any."""
    meter: ExpertMeter | None = vars(wrapper.worker).pop(_PLACE, None)
    if meter is not None:
        meter.stop()
