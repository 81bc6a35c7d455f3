"""Everything that `wisp curve` says about a trace, as numbers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wisp.errors import ConfigError
from wisp.trace import RoutingTrace
from wisp.workingset.clean import clean_share, slots_without_miss
from wisp.workingset.curve import MissCurve, miss_curves
from wisp.workingset.footprint import cumulative_footprint, overlap, working_set_sizes

_WINDOWS = tuple(4**power for power in range(7))  # 1 to 4096 steps


@dataclass(frozen=True, eq=False)
class WindowFacts:
    """What windows of one length touch; every array has one mean for each layer."""

    steps: int
    working_set: NDArray[np.float64]
    """[layers]: experts touched by the last so many steps, after each step (fewer at the start)."""
    union: NDArray[np.float64]
    """[layers]: the same over whole windows only, as a share of the layer's experts: a burst of so many steps."""
    shared: NDArray[np.float64] | None
    """[layers]: the part of a burst's experts that the burst before touched; None where the trace has only one."""


@dataclass(frozen=True, eq=False)
class TraceSummary:
    """Curves, footprints and windows of a trace of at least one step."""

    trace: RoutingTrace
    curves: list[MissCurve]
    total: MissCurve
    footprint: NDArray[np.int64]
    """[layers]: experts that the trace touches at all."""
    windows: list[WindowFacts]
    slots_needed: NDArray[np.int64]
    """[layers, steps]: see `slots_without_miss`."""

    @classmethod
    def of(cls, trace: RoutingTrace) -> "TraceSummary":
        """Analyse the trace: some 8 s of one core for 48 layers of 10,000 steps of 128 experts.

        Raises:
            ConfigError: it has no layer or no step.
        """
        if not trace.layers or not trace.steps:
            raise ConfigError(f"a trace of {trace.layers} layers and {trace.steps} steps has nothing to sum up")
        curves = miss_curves(trace)
        return cls(
            trace,
            curves,
            MissCurve.total(curves),
            np.array([cumulative_footprint(trace, layer)[-1] for layer in range(trace.layers)]),
            [_window(trace, steps) for steps in _WINDOWS if steps <= trace.steps],
            slots_without_miss(trace),
        )

    @property
    def widest_step(self) -> int:
        """The fewest slots for which the curves are those of a pager."""
        return self.total.widest_step

    def clean_share(self, slots: int) -> float:
        """The share of steps without any miss in any layer."""
        return clean_share(self.slots_needed, slots)

    def check_slots(self, slots: int) -> None:
        """`ConfigError` unless a layer could have so many slots, and its widest step fits into them."""
        check_slots(self.trace, slots)


def check_slots(trace: RoutingTrace, slots: int) -> None:
    """`ConfigError` unless a layer of this trace could have so many slots, and its widest step fits into them."""
    widest = int(trace.widths().max(initial=1))
    if not widest <= slots <= trace.num_experts:
        fitting = f"{widest} to {trace.num_experts}" if widest < trace.num_experts else f"{widest}"
        raise ConfigError(
            f"{slots} slots for this trace: its widest step requires {widest} experts of a layer, and a layer has "
            f"{trace.num_experts}; give {fitting}, or leave the steps of prompts out (--phase decode)"
        )


def _window(trace: RoutingTrace, steps: int) -> WindowFacts:
    sizes = np.array([working_set_sizes(trace, layer, steps) for layer in range(trace.layers)])
    shared = None
    if trace.steps // steps > 1:
        shared = np.array([overlap(trace, layer, steps).share for layer in range(trace.layers)])
    return WindowFacts(steps, sizes.mean(axis=1), sizes[:, steps - 1 :].mean(axis=1) / trace.num_experts, shared)
