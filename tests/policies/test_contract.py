"""What every replacement policy owes the resident set, whatever its name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import ConfigError, UnknownPolicyError
from wisp.policies import OFFLINE_POLICIES, POLICIES, LeastStale, make_policy
from wisp.policies.lfru import LFRU
from wisp.resident import ResidentSet

EXPERTS = 9
STEPS = st.lists(st.sets(st.integers(0, EXPERTS - 1), max_size=6).map(sorted), min_size=1, max_size=30)
every_policy = pytest.mark.parametrize("name", [*POLICIES, *OFFLINE_POLICIES])


class Watched:
    """A policy that checks, at each call, both sides of the contract."""

    def __init__(self, policy):
        self.policy, self.known = policy, set()

    def touch(self, step):
        assert list(step) == sorted(set(step))
        self.policy.touch(step)
        self.known |= set(step)

    def victim(self, evictable):
        assert evictable
        assert set(evictable) <= self.known
        before = set(evictable)
        answer = self.policy.victim(evictable)
        assert answer in before
        assert evictable == before
        assert self.policy.victim(evictable) == answer, "asking changed the policy"
        return answer

    def forget(self, expert):
        self.known.remove(expert)
        self.policy.forget(expert)


@every_policy
@given(steps=STEPS, slots=st.integers(1, EXPERTS))
def test_both_sides_keep_the_contract(name, steps, slots):
    watched = Watched(make_policy(name, future=steps))
    resident = ResidentSet(EXPERTS, slots, watched)
    for step in steps:
        resident.plan(step)
        assert watched.known == set(resident.resident)


@every_policy
@given(steps=STEPS, slots=st.integers(1, EXPERTS))
def test_the_same_steps_give_the_same_plans(name, steps, slots):
    first, second = (ResidentSet(EXPERTS, slots, make_policy(name, future=steps)) for _ in range(2))
    for step in steps:
        assert first.plan(step) == second.plan(reversed(step))


@every_policy
@given(steps=STEPS, cut=st.integers(0, 29))
def test_a_forgotten_expert_comes_back_as_new(name, steps, cut):
    resident = ResidentSet(EXPERTS, EXPERTS, Watched(make_policy(name, future=steps)))
    for now, step in enumerate(steps):
        if now == cut:
            for expert in resident.resident:
                resident.forget(expert)
        before = set(resident.resident)
        assert resident.plan(step).faults == len(set(step) - before)
    assert set(resident.resident) == set().union(*steps[cut if cut < len(steps) else 0 :])


def victims(policy, evictable):
    """The whole order of eviction."""
    rest, order = set(evictable), []
    while rest:
        order.append(policy.victim(rest))
        rest.remove(order[-1])
        policy.forget(order[-1])
    return order


def touched(policy, *steps):
    for step in steps:
        policy.touch(step)
    return policy


def test_lru_evicts_by_last_step_then_highest_id():
    assert victims(touched(make_policy("lru"), [1, 2, 3], [4, 5], [2]), {1, 2, 3, 4, 5}) == [3, 1, 5, 4, 2]


def test_fifo_evicts_by_arrival_whatever_was_used_since():
    assert victims(touched(make_policy("fifo"), [1, 2], [3], [1], [1, 2]), {1, 2, 3}) == [2, 1, 3]


def test_lfru_evicts_the_lowest_class_first_and_within_it_the_oldest():
    policy = touched(LFRU(), *[[3]] * 3, *[[1]] * 4, *[[2]] * 2, [4, 5])
    # The uses 4, 2, 3, 1, 1 make the classes 3, 2, 2, 1, 1: 3 goes before 2 although it was used more often.
    assert victims(policy, {1, 2, 3, 4, 5}) == [5, 4, 3, 2, 1]


def test_lfru_remembers_how_often_across_an_eviction():
    policy = touched(LFRU(), *[[1]] * 4, [2])
    policy.forget(1)
    assert victims(touched(policy, [1], [2]), {1, 2}) == [2, 1]


def test_lfru_lets_an_old_favourite_fade():
    steps = [*[[1]] * 7, *[[2]] * 3]
    assert touched(LFRU(halve_every=100), *steps).victim({1, 2}) == 2
    assert touched(LFRU(halve_every=4), *steps).victim({1, 2}) == 1


def test_least_stale_evicts_stale_before_fresh_and_each_by_arrival():
    policy = touched(LeastStale(window=2), [1], [2], [3], [1], [4])
    # The last two steps used 1 and 4; the stale 2 and 3 go first although 1 arrived before them.
    assert victims(policy, {1, 2, 3, 4}) == [2, 3, 1, 4]


@given(STEPS, st.integers(1, EXPERTS), st.sampled_from([1, 1000]))
def test_least_stale_of_an_extreme_window_is_fifo(steps, slots, window):
    stale = ResidentSet(EXPERTS, slots, LeastStale(window))
    fifo = ResidentSet(EXPERTS, slots, make_policy("fifo"))
    for step in steps:
        assert stale.plan(step) == fifo.plan(step)


def test_wrong_names_and_settings_are_refused():
    with pytest.raises(UnknownPolicyError, match="lru, lfru, least_stale, fifo, belady"):
        make_policy("random")
    with pytest.raises(ConfigError, match="future"):
        make_policy("belady")
    for wrong in (lambda: LFRU(0), lambda: LeastStale(0)):
        with pytest.raises(ConfigError, match="1 step or more"):
            wrong()
    assert not set(POLICIES) & set(OFFLINE_POLICIES)
