"""The curve of one pass equals the replays of all capacities."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import ConfigError
from wisp.simulate import simulate
from wisp.trace import RoutingTrace
from wisp.workingset import MissCurve, miss_curves

EXPERTS = 10
STEP = st.sets(st.integers(0, EXPERTS - 1), max_size=4).map(sorted)
REPEATED = st.tuples(STEP, st.integers(1, 4)).map(lambda pair: [pair[0]] * pair[1])
STEPS = st.lists(STEP.map(lambda step: [step]) | REPEATED, max_size=40).map(lambda runs: list(chain(*runs)))


@given(STEPS)
def test_curve_equals_replay(steps):
    trace = RoutingTrace.from_steps(EXPERTS, [steps])
    (curve,) = miss_curves(trace)
    assert curve.widest_step == max(map(len, steps), default=0)
    for slots in range(max(curve.widest_step, 1), EXPERTS + 1):
        assert curve.misses_at(slots) == simulate(trace, slots).total_faults


@given(STEPS)
def test_curve_falls_from_all_references_to_the_cold_ones(steps):
    (curve,) = miss_curves(RoutingTrace.from_steps(EXPERTS, [steps]))
    assert np.all(np.diff(curve.misses) <= 0)
    assert curve.misses_at(0) == curve.references == sum(map(len, steps))
    assert curve.misses_at(EXPERTS) == curve.cold_misses == len(set().union(*steps))


def test_a_curve_by_hand():
    (curve,) = miss_curves(RoutingTrace.from_steps(4, [[[0], [1], [0], [1], [2], [0]]]))
    assert curve.misses.tolist() == [6, 6, 4, 3, 3]
    assert (curve.cold_misses, curve.steps, curve.widest_step, curve.num_experts) == (3, 6, 1, 4)
    assert curve.miss_ratio(2) == 4 / 6
    assert curve.misses_per_step(2) == 4 / 6
    assert [curve.value_of_next_slot(slots) for slots in range(5)] == [0, 2, 1, 0, 0]


def test_layers_add_up():
    trace = RoutingTrace.from_membership(np.random.default_rng(3).random((3, 80, EXPERTS)) < 0.25)
    total = MissCurve.total(miss_curves(trace))
    for slots in range(total.widest_step, EXPERTS + 1):
        assert total.misses_at(slots) == simulate(trace, slots).total_faults
    assert total.steps == 80
    with pytest.raises(ConfigError, match="add up"):
        MissCurve.total([total, *miss_curves(RoutingTrace.from_steps(4, [[[0]]]))])
    with pytest.raises(ConfigError, match="add up"):
        MissCurve.total([])


def test_an_empty_trace_has_ratio_zero():
    (curve,) = miss_curves(RoutingTrace.from_steps(4, [[]]))
    assert (curve.miss_ratio(2), curve.misses_per_step(2)) == (0.0, 0.0)


@pytest.mark.parametrize("slots", [-1, 5])
def test_a_capacity_off_the_curve_is_refused(slots):
    (curve,) = miss_curves(RoutingTrace.from_steps(4, [[[0]]]))
    with pytest.raises(ConfigError, match="0 to 4"):
        curve.misses_at(slots)


def test_counting_reference_by_reference_would_overcount():
    steps = [[0, 1, 2], [1, 2, 3], [0, 1, 2]]
    (curve,) = miss_curves(RoutingTrace.from_steps(4, [steps]))
    one_by_one = [[expert] for step in steps for expert in step]
    (flattened,) = miss_curves(RoutingTrace.from_steps(4, [one_by_one]))
    assert curve.misses_at(3) == simulate(RoutingTrace.from_steps(4, [steps]), 3).total_faults == 5
    assert flattened.misses_at(3) == 7
