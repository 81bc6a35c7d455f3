"""The online histogram gives the curves of the trace, and of a fading past if it is to forget."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import ConfigError
from wisp.trace import RoutingTrace
from wisp.workingset import COLD, LRUStack, MissCurve, miss_curves
from wisp.workingset.histogram import ExpertHistogram

EXPERTS = 9
STEP = st.sets(st.integers(0, EXPERTS - 1), max_size=5).map(sorted)
STEPS = st.lists(st.tuples(STEP, STEP), max_size=40)


def trace_of(steps):
    return RoutingTrace.from_steps(EXPERTS, [[pair[layer] for pair in steps] for layer in (0, 1)])


def observed(trace, **options):
    histogram = ExpertHistogram(trace.layers, trace.num_experts, **options)
    for step in range(trace.steps):
        histogram.observe(np.stack([trace.membership(layer, step, step + 1)[0] for layer in range(trace.layers)]))
    return histogram


@given(STEPS)
def test_without_decay_it_equals_the_curves_of_the_trace(steps):
    trace = trace_of(steps)
    for ours, whole in zip(observed(trace, half_life_steps=None).curves(), miss_curves(trace), strict=True):
        assert ours.misses.tolist() == whole.misses.tolist()
        assert (ours.cold_misses, ours.steps, ours.widest_step) == (whole.cold_misses, whole.steps, whole.widest_step)


@given(STEPS, st.floats(0.5, 50))
def test_with_decay_every_reference_weighs_what_its_age_says(steps, half_life):
    curves = observed(trace_of(steps), half_life_steps=half_life).curves()
    weights = [0.5 ** ((len(steps) - 1 - index) / half_life) for index in range(len(steps))]
    for layer, curve in enumerate(curves):
        stack, misses = LRUStack(), np.zeros(EXPERTS + 1)
        for pair, weight in zip(steps, weights, strict=True):
            for depth in stack.push(pair[layer]):
                misses[: EXPERTS + 1 if depth == COLD else depth + 1] += weight
        assert curve.misses == pytest.approx(misses)
        assert curve.steps == pytest.approx(sum(weights))


def test_it_follows_a_workload_that_changes():
    """100 steps over two experts, then over six others: after four half-lives the curve is that of the latter."""
    steps = [[[step % 2]] for step in range(100)] + [[[2 + step % 6]] for step in range(100)]
    trace = RoutingTrace.from_steps(EXPERTS, [[step[0] for step in steps]])
    (fading,) = observed(trace, half_life_steps=25.0).curves()
    (whole,) = miss_curves(trace)
    assert whole.miss_ratio(5) == pytest.approx(0.51, abs=0.01)
    assert fading.miss_ratio(5) > 0.93
    assert fading.miss_ratio(6) < 0.02


def test_the_curve_can_be_asked_for_at_any_time():
    histogram = ExpertHistogram(1, 4, half_life_steps=None)
    assert histogram.curves()[0].misses.tolist() == [0] * 5
    histogram.observe(np.array([[True, False, False, True]]))
    first = histogram.curves()[0]
    histogram.observe(np.array([[True, False, False, False]]))
    assert first.misses.tolist() == [2] * 5
    assert histogram.curves()[0].misses.tolist() == [3, 2, 2, 2, 2]
    assert histogram.steps == 2
    assert isinstance(first, MissCurve)


def test_what_makes_no_sense_is_refused():
    for half_life in (0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="half_life_steps"):
            ExpertHistogram(1, 4, half_life_steps=half_life)
    with pytest.raises(ConfigError, match="0 layers"):
        ExpertHistogram(0, 4)
    with pytest.raises(ConfigError, match=r"bool \[2, 4\], not bool \[4\]"):
        ExpertHistogram(2, 4).observe(np.ones(4, dtype=bool))
