"""Footprints count what sets of steps count."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import ConfigError
from wisp.trace import RoutingTrace
from wisp.workingset.footprint import (
    burst_footprints,
    cumulative_footprint,
    overlap,
    reuse_share,
    working_set_sizes,
)

EXPERTS = 8
STEPS = st.lists(st.sets(st.integers(0, EXPERTS - 1), max_size=4), min_size=1, max_size=20)


def union(steps):
    return set().union(*steps)


@given(STEPS, st.data())
def test_a_window_counts_its_distinct_experts(steps, data):
    window = data.draw(st.integers(1, len(steps)))
    trace = RoutingTrace.from_steps(EXPERTS, [steps])
    sizes = working_set_sizes(trace, 0, window)
    assert sizes.tolist() == [len(union(steps[max(0, end - window) : end])) for end in range(1, len(steps) + 1)]
    assert burst_footprints(trace, 0, window).tolist() == [
        len(union(steps[start : start + window])) / EXPERTS for start in range(len(steps) - window + 1)
    ]


@given(STEPS)
def test_a_session_only_grows(steps):
    sizes = cumulative_footprint(RoutingTrace.from_steps(EXPERTS, [steps]), 0)
    assert sizes.tolist() == [len(union(steps[:end])) for end in range(1, len(steps) + 1)]


@given(STEPS, st.data())
def test_neighbours_share_their_common_experts(steps, data):
    burst = data.draw(st.integers(1, len(steps)))
    bursts = [union(steps[i : i + burst]) for i in range(0, len(steps) - burst + 1, burst)]
    pairs = list(pairwise(bursts))
    found = overlap(RoutingTrace.from_steps(EXPERTS, [steps]), 0, burst)
    assert found.shared.tolist() == [len(a & b) for a, b in pairs]
    assert found.touched.tolist() == [len(b) for _, b in pairs]
    assert found.share * max(sum(len(b) for _, b in pairs), 1) == pytest.approx(sum(len(a & b) for a, b in pairs))


@given(STEPS.filter(lambda steps: len(steps) > 1), st.data())
def test_reuse_looks_back_as_far_as_it_says(steps, data):
    within = data.draw(st.integers(1, len(steps) - 1))
    late = [(expert, now) for now in range(within, len(steps)) for expert in steps[now]]
    reused = sum(expert in union(steps[now - within : now]) for expert, now in late)
    trace = RoutingTrace.from_steps(EXPERTS, [steps])
    assert reuse_share(trace, 0, within) == reused / max(len(late), 1)
    if within == 1:
        assert reuse_share(trace, 0, 1) == overlap(trace, 0).share


def test_lengths_that_the_trace_cannot_give_are_refused():
    trace = RoutingTrace.from_steps(EXPERTS, [[[0], [1]]])
    for call in (working_set_sizes, burst_footprints, overlap, reuse_share):
        with pytest.raises(ConfigError, match="2 steps"):
            call(trace, 0, 3)
        with pytest.raises(ConfigError, match="2 steps"):
            call(trace, 0, -1)
