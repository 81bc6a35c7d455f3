"""What the stream of expert references asks for: misses of a decode step by slots."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wisp.allocator.model_shape import ModelShape
from wisp.allocator.prior import WARM_STEPS, PriorRouting
from wisp.allocator.workload import Workload
from wisp.errors import TraceError
from wisp.trace import RoutingTrace
from wisp.workingset.stack import count_depths


@dataclass(frozen=True, eq=False)
class ExpertDemand:
    """Expert misses of a decode step, once the slots are warm."""

    misses_a_step: NDArray[np.float64]
    """[num_experts + 1], summed over the model's layers: with 0 slots every reference misses, and with a slot for every
    expert none."""
    streams: float
    """Tokens of a step."""
    touched: int
    """Experts of a layer that were ever needed, in the layer with the most."""
    source: str

    @property
    def references_a_step(self) -> float:
        """Distinct experts that a step needs, summed over the layers."""
        return float(self.misses_a_step[0])

    def hit_ratio(self, slots: int) -> float:
        """Share of references whose expert has a slot; 1 where nothing is referenced."""
        return 1.0 - float(self.misses_a_step[slots]) / self.references_a_step if self.references_a_step else 1.0


def prior_demand(shape: ModelShape, streams: int) -> ExpertDemand:
    """The demand of the stated prior with so many streams side by side."""
    prior = PriorRouting()
    trace = prior.trace(shape.num_experts, shape.top_k, streams)
    misses, touched = _warm_misses(trace, np.ones(trace.steps, dtype=np.bool_), WARM_STEPS)
    return ExpertDemand(misses * (shape.moe_layers / trace.layers), streams, touched, str(prior))


def traced_demand(trace: RoutingTrace, shape: ModelShape, workload: Workload) -> ExpertDemand:
    """The demand of the decode steps of a recorded trace: those of no more tokens than sequences run at once.

    The first eighth of them (64 at most) warms the slots up and is not counted.

    Raises:
        TraceError: the trace is of another model, or has no decode step.
    """
    check_trace(trace, shape)
    if trace.tokens is None:
        decodes = np.ones(trace.steps, dtype=np.bool_)
        streams = max(1.0, float(trace.widths().mean()) / shape.top_k)
        what = f"all {trace.steps} steps of the trace, whose token counts were not recorded"
    else:
        decodes = (trace.tokens >= 1) & (trace.tokens <= workload.sequences)
        streams = float(trace.tokens[decodes].mean()) if decodes.any() else 0.0
        what = f"the trace's {int(decodes.sum())} decode steps of {streams:.3g} tokens"
    if not decodes.any():
        raise TraceError(
            f"none of the trace's {trace.steps} steps has 1 to {workload.sequences} tokens, so it tells nothing about "
            f"decoding; record generation, or raise --max-num-seqs to what was recorded"
        )
    misses, touched = _warm_misses(trace, decodes, min(WARM_STEPS, int(decodes.sum()) // 8))
    return ExpertDemand(misses, streams, touched, what)


def check_trace(trace: RoutingTrace, shape: ModelShape) -> None:
    """`TraceError` if the trace is of another model, or of nothing."""
    if (trace.num_experts, trace.layers) != (shape.num_experts, shape.moe_layers):
        raise TraceError(
            f"the trace has {trace.layers} layers of {trace.num_experts} experts but the model has "
            f"{shape.moe_layers} of {shape.num_experts}; record a trace of this model"
        )
    if not trace.steps:
        raise TraceError("the trace has no steps; record one while the server is answering")
    _check_top_k(trace, shape)


def _check_top_k(trace: RoutingTrace, shape: ModelShape) -> None:
    """`TraceError` if no router of this model can have chosen so many experts, or so few."""
    widest = trace.widths().max(axis=0)
    if trace.tokens is not None and (beyond := np.flatnonzero(widest > trace.tokens * shape.top_k)).size:
        step = int(beyond[0])
        raise TraceError(
            f"step {step} of the trace needs {widest[step]} experts of a layer, but its tokens ({trace.tokens[step]}) "
            f"choose {shape.top_k} each in this model; record a trace of this model"
        )
    if widest.max() < shape.top_k:
        raise TraceError(
            f"no step of the trace needs more than {widest.max()} experts of a layer, but a token of this model needs "
            f"{shape.top_k}; record a trace of this model"
        )


def _warm_misses(trace: RoutingTrace, counted: NDArray[np.bool_], warm: int) -> tuple[NDArray[np.float64], int]:
    """Misses a step of all layers by slots, over the `counted` steps but the first `warm`; experts touched."""
    misses = np.zeros(trace.num_experts + 1)
    touched = 0
    for layer in range(trace.layers):
        steps = trace.membership(layer)[counted]
        touched = max(touched, int(steps.any(axis=0).sum()))
        misses += _misses(steps) - _misses(steps[:warm])
    misses[-1] = 0.0  # an expert's first load is its last then, whenever it comes
    measured = int(counted.sum()) - warm
    return misses / measured, touched


def _misses(steps: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[num_experts + 1] of one layer's steps; a depth does not depend on what comes later."""
    counts = count_depths(RoutingTrace.from_membership(steps[None]))
    hits = np.concatenate([[0.0], np.cumsum(counts.warm[0], dtype=np.float64)])
    result: NDArray[np.float64] = hits[-1] + counts.cold[0] - hits
    return result
