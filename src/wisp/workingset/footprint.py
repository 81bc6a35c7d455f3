"""How many experts a stretch of a layer's steps touches, and how much neighbouring stretches share.

A working set is what the last few steps touched (Denning, "The working set model for program behavior",
1968); a footprint is what a whole stretch touched. Both say what a burst of tokens costs before any cache is
chosen; the miss curve says what a cache makes of it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wisp.errors import ConfigError
from wisp.trace import RoutingTrace


@dataclass(frozen=True, eq=False)
class Overlap:
    """What each stretch of steps shares with the one before it; the first has none and is left out."""

    shared: NDArray[np.int64]
    """Experts touched by the stretch and by the one before."""
    touched: NDArray[np.int64]
    """Experts touched by the stretch."""

    @property
    def share(self) -> float:
        """The part of all touched experts that the stretch before had touched; 0 if none was touched."""
        return int(self.shared.sum()) / max(int(self.touched.sum()), 1)


def working_set_sizes(trace: RoutingTrace, layer: int, window: int) -> NDArray[np.int64]:
    """int64 [steps]: distinct experts touched by the last `window` steps up to and including each one.

    Before `window` steps have passed the window is shorter.
    """
    _check_length(trace, window, "window")
    touches = np.zeros((trace.steps + 1, trace.num_experts), dtype=np.int32)
    np.cumsum(trace.membership(layer), axis=0, out=touches[1:])
    before = np.maximum(np.arange(1, trace.steps + 1) - window, 0)
    sizes: NDArray[np.int64] = np.count_nonzero(touches[1:] > touches[before], axis=1)
    return sizes


def burst_footprints(trace: RoutingTrace, layer: int, burst: int) -> NDArray[np.float64]:
    """float64 [steps - burst + 1]: the share of the experts touched by each run of `burst` consecutive steps.

    A prefill chunk or a batch of `burst` tokens touches about as many.
    """
    return working_set_sizes(trace, layer, burst)[burst - 1 :] / trace.num_experts


def cumulative_footprint(trace: RoutingTrace, layer: int) -> NDArray[np.int64]:
    """int64 [steps]: distinct experts touched since the trace began, after each step."""
    touches = np.cumsum(trace.membership(layer), axis=0, dtype=np.int32)
    sizes: NDArray[np.int64] = np.count_nonzero(touches, axis=1)
    return sizes


def overlap(trace: RoutingTrace, layer: int, burst: int = 1) -> Overlap:
    """What neighbouring bursts share; a burst of one is a step.

    The trace is cut into bursts of `burst` steps from its beginning; a rest that fills none is left out.
    """
    _check_length(trace, burst, "burst")
    bursts = trace.steps // burst
    steps = trace.membership(layer, 0, bursts * burst)
    touched = np.logical_or.reduce(steps.reshape(bursts, burst, trace.num_experts), axis=1)
    shared = np.count_nonzero(touched[1:] & touched[:-1], axis=1)
    return Overlap(shared, np.count_nonzero(touched[1:], axis=1))


def reuse_share(trace: RoutingTrace, layer: int, within: int) -> float:
    """The share of references whose expert one of the `within` steps before had touched.

    Only steps that have so many before them count; 0 if they reference nothing.
    """
    _check_length(trace, within + 1, "within + 1")
    member = trace.membership(layer)
    touches = np.zeros((trace.steps + 1, trace.num_experts), dtype=np.int32)
    np.cumsum(member, axis=0, out=touches[1:])
    recent = touches[within:-1] > touches[: -within - 1]
    late = member[within:]
    return int((late & recent).sum()) / max(int(late.sum()), 1)


def _check_length(trace: RoutingTrace, length: int, name: str) -> None:
    if not 1 <= length <= trace.steps:
        raise ConfigError(f"{name}={length} of a trace of {trace.steps} steps; set it to 1 up to {trace.steps}")
