"""Belady's MIN is a true lower bound, and is not fooled about the trace."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import ConfigError
from wisp.policies import POLICIES, Belady
from wisp.resident import ResidentSet
from wisp.simulate import simulate
from wisp.trace import RoutingTrace

EXPERTS = 9
STEPS = st.lists(st.sets(st.integers(0, EXPERTS - 1), max_size=4).map(sorted), min_size=1, max_size=40)


@given(STEPS, st.integers(4, EXPERTS))
def test_no_policy_faults_less_than_belady(steps, slots):
    trace = RoutingTrace.from_steps(EXPERTS, [steps])
    least = simulate(trace, slots, "belady").total_faults
    for policy in POLICIES:
        assert least <= simulate(trace, slots, policy).total_faults


def fewest_faults(steps, slots):
    """By trying every choice of what to keep."""
    best = {frozenset(): 0}
    for step in map(frozenset, steps):
        after = {}
        for held, faults in best.items():
            others = sorted(held - step)
            for kept in combinations(others, min(len(others), slots - len(step))):
                now = step | set(kept)
                after[now] = min(after.get(now, 10**9), faults + len(step - held))
        best = after
    return min(best.values())


@given(st.lists(st.sets(st.integers(0, 5), max_size=3).map(sorted), min_size=1, max_size=12), st.integers(3, 5))
def test_belady_is_the_optimum_of_all_choices(steps, slots):
    trace = RoutingTrace.from_steps(6, [steps])
    assert simulate(trace, slots, "belady").total_faults == fewest_faults(steps, slots)


def test_belady_evicts_the_farthest_use_and_never_used_again_before_that():
    policy = Belady([(0, 1, 2, 3), (0,), (1,), (2,)])
    policy.touch((0, 1, 2, 3))
    assert policy.victim({0, 1, 2, 3}) == 3
    assert policy.victim({0, 1, 2}) == 2
    assert policy.victim({0, 1}) == 1


def test_a_step_that_was_not_announced_is_refused_and_changes_nothing():
    resident = ResidentSet(4, 2, Belady([(0, 1), (2,)]))
    with pytest.raises(ConfigError, match="step 0 is not the one announced"):
        resident.plan([0])
    resident.plan([0, 1])
    resident.plan([2])
    with pytest.raises(ConfigError, match="given 2 steps"):
        resident.plan([])
    assert resident.resident == (0, 2)
