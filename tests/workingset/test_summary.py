"""The summary holds what its parts compute."""

import numpy as np
import pytest

from wisp.errors import ConfigError
from wisp.trace import RoutingTrace
from wisp.workingset import miss_curves
from wisp.workingset.footprint import burst_footprints, overlap, working_set_sizes
from wisp.workingset.summary import TraceSummary, check_slots

TRACE = RoutingTrace.from_membership(np.random.default_rng(0).random((3, 70, 16)) < 0.2)


def test_it_is_the_sum_of_its_parts():
    summary = TraceSummary.of(TRACE)
    assert [curve.misses.tolist() for curve in summary.curves] == [c.misses.tolist() for c in miss_curves(TRACE)]
    assert summary.widest_step == TRACE.widths().max()
    assert summary.footprint.tolist() == [TRACE.membership(layer).any(axis=0).sum() for layer in range(3)]
    assert [window.steps for window in summary.windows] == [1, 4, 16, 64]
    for window in summary.windows:
        for layer in range(3):
            assert window.working_set[layer] == working_set_sizes(TRACE, layer, window.steps).mean()
            assert window.union[layer] == pytest.approx(burst_footprints(TRACE, layer, window.steps).mean())
            if window.steps < 64:
                assert window.shared[layer] == overlap(TRACE, layer, window.steps).share
    assert summary.windows[-1].shared is None
    assert summary.clean_share(16) == pytest.approx(1 - np.mean(summary.slots_needed.max(axis=0) > 16))


def test_slots_off_the_trace_are_refused():
    widest = int(TRACE.widths().max())
    check_slots(TRACE, widest)
    check_slots(TRACE, 16)
    for slots in (widest - 1, 17):
        with pytest.raises(ConfigError, match=f"give {widest} to 16"):
            TraceSummary.of(TRACE).check_slots(slots)


def test_an_empty_trace_is_refused():
    with pytest.raises(ConfigError, match="nothing to sum up"):
        TraceSummary.of(RoutingTrace.from_steps(4, [[]]))
