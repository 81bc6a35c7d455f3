"""From measurements to the rates of a calibration: the line through all decode steps, with no negative cost.

A decode step takes so much by itself, and so much for each stream, each expert, each token read back from KV, and each
fault. Points count by their relative error, so that fast steps are met as well as slow ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from wisp.allocator.measurement import CopyPoint, DecodePoint, Measurements, PrefillPoint
from wisp.allocator.model_shape import ModelShape
from wisp.errors import ConfigError
from wisp.units import format_bytes

_FAIR_FIT = 0.25
"""By how much the fit may miss a step; beyond it something else ran meanwhile, or the costs are not those of a line."""

_LEAST_SHARE = 0.01
"""Of a measured time that is left to a part of it when the other parts seem to take all."""


@dataclass(frozen=True)
class StepCosts:
    """Seconds that make up a decode step."""

    step: float
    stream: float
    expert: float
    token: float
    """For each token read back from KV."""
    fault: float
    worst: float
    """The largest relative error of a point."""

    def seconds(self, streams: float, experts: float, tokens: float, faults: float) -> float:
        """Of a step with so many streams, distinct experts, tokens read back, and faults."""
        return self.step + streams * self.stream + experts * self.expert + tokens * self.token + faults * self.fault


def fit_steps(points: Sequence[DecodePoint]) -> StepCosts:
    """The costs of least squared relative error among all that are not negative.

    Raises:
        ConfigError: no point.
    """
    if not points:
        raise ConfigError("no decode step was measured, so no cost can be told; calibrate anew")
    columns = np.array([[1.0, p.streams, p.experts, p.streams * p.context, p.faults] for p in points])
    seconds = np.array([p.seconds for p in points])
    weighted = columns / seconds[:, None]
    best, least = np.zeros(5), np.inf
    for count in range(5):
        for others in combinations(range(1, 5), count):
            used = [0, *others]
            found, *_ = np.linalg.lstsq(weighted[:, used], np.ones(len(points)), rcond=None)
            error = float(np.square(weighted[:, used] @ found - 1).sum())
            if (found >= 0).all() and error < least:
                best, least = np.zeros(5), error
                best[used] = found
    step, stream, expert, token, fault = best.tolist()
    return StepCosts(step, stream, expert, token, fault, float(np.abs(weighted @ best - 1).max()))


def rates(shape: ModelShape, measured: Measurements) -> tuple[dict[str, float], list[str]]:
    """The rates by their names in a `Calibration`, and what of them could not be measured as such."""
    costs, notes = fit_steps(measured.decode), []
    device = measured.device_bytes_per_second
    rows = _nearest(measured.copies, "rows", shape.expert_bytes)
    fault = costs.fault
    if not fault:
        kernels = [point for point in measured.copies if point.by == "kernel"] or [rows]
        fault = shape.expert_bytes / _nearest(kernels, kernels[0].by, shape.expert_bytes).bytes_per_second
        notes.append("no fault was measured in a step: its cost is that of a copy of its size")
    if resident_faults := max((p.faults for p in measured.decode if p.is_pinned), default=0.0):
        notes.append(f"steps that were to have no faults had up to {resident_faults:.3g}; the fit takes them off")
    weights = shape.decode_weight_bytes / device
    alone = costs.step - weights - shape.moe_layers * measured.decide_seconds
    if alone < _LEAST_SHARE * costs.step:
        notes.append("reading the weights seems to take a whole step: what a layer takes beside it is a guess")
        alone = max(_LEAST_SHARE * costs.step, 1e-9)
    prefill = [(p.tokens, _without_streaming(p, rows)) for p in measured.prefill]
    if any(seconds <= _LEAST_SHARE * p.seconds for (_, seconds), p in zip(prefill, measured.prefill, strict=True)):
        notes.append("streaming hid a prefill's computation, which is so told as next to nothing")
    shortest, longest = prefill[0], prefill[-1]
    found = {
        "fault_bytes_per_second": shape.expert_bytes / fault,
        "stream_bytes_per_second": rows.bytes_per_second,
        "device_bytes_per_second": device,
        "expert_bytes_per_second": shape.expert_bytes / costs.expert if costs.expert else device,
        "kv_bytes_per_second": shape.kv_bytes_a_token() / costs.token if costs.token else device,
        "layer_seconds": alone / shape.layers,
        "sequence_seconds": costs.stream,
        "decide_seconds": measured.decide_seconds,
        "prefill_layer_seconds": shortest[1] / shape.layers,
        "prefill_flops_per_second": 2 * shape.active_parameters * longest[0] / longest[1],
    }
    if costs.worst <= _FAIR_FIT:
        notes.append(f"the fit meets every measured decode step within {costs.worst:.0%}")
    else:
        notes.append(
            f"the fit misses a measured decode step by {costs.worst:.0%}, so these rates are no good guide: calibrate "
            f"again while nothing else runs"
        )
    return found, notes


def prefill_seconds(measured: Measurements, shape: ModelShape) -> tuple[tuple[int, float], ...]:
    """(tokens, seconds) of prefill steps without streaming, by ascending tokens."""
    rows = _nearest(measured.copies, "rows", shape.expert_bytes)
    return tuple(sorted((p.tokens, _without_streaming(p, rows)) for p in measured.prefill))


def _without_streaming(point: PrefillPoint, rows: CopyPoint) -> float:
    return max(point.seconds - point.moved_bytes / rows.bytes_per_second, _LEAST_SHARE * point.seconds)


def _nearest(copies: Sequence[CopyPoint], by: str, nbytes: int) -> CopyPoint:
    """The copy of this kind that is nearest in size."""
    found = [point for point in copies if point.by == by]
    if not found:
        raise ConfigError(f"no copy of about {format_bytes(nbytes)} was measured; calibrate anew")
    return min(found, key=lambda point: abs(point.nbytes - nbytes))
