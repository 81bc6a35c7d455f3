"""Stack distances are what counting distinct experts by hand gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.trace import RoutingTrace
from wisp.workingset import COLD, LRUStack, count_depths, stack

EXPERTS = 9
STEPS = st.lists(st.sets(st.integers(0, EXPERTS - 1), max_size=5).map(sorted), max_size=40)


def depth_by_hand(steps, now, expert):
    """Distinct experts used after `expert` was, in canonical order, before the step `now`."""
    earlier = [index for index in range(now) if expert in steps[index]]
    if not earlier:
        return COLD
    last = earlier[-1]
    later = set().union(*steps[last + 1 : now]) | {other for other in steps[last] if other < expert}
    return len(later - {expert})


@given(STEPS)
def test_the_stack_equals_brute_force(steps):
    lru_stack = LRUStack()
    for now, step in enumerate(steps):
        assert lru_stack.push(step) == tuple(depth_by_hand(steps, now, expert) for expert in step)


@given(st.lists(STEPS, min_size=1, max_size=3))
def test_bulk_counts_equal_the_stack(layers):
    shortest = min(map(len, layers))
    layers = [steps[:shortest] for steps in layers]
    counts = count_depths(RoutingTrace.from_steps(EXPERTS, layers))
    for layer, steps in enumerate(layers):
        lru_stack = LRUStack()
        depths = [depth for step in steps for depth in lru_stack.push(step)]
        assert counts.cold[layer] == depths.count(COLD)
        assert counts.warm[layer].tolist() == [depths.count(depth) for depth in range(EXPERTS)]


@pytest.mark.parametrize("limit", [0, 2**31])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_bulk_counts_do_not_depend_on_pieces_or_key_width(monkeypatch, rows, limit):
    trace = RoutingTrace.from_membership(np.random.default_rng(2).random((2, 64, 20)) < 0.2)
    expected = count_depths(trace)
    monkeypatch.setattr(stack, "_ROWS", rows)
    monkeypatch.setattr(stack, "_INT32_KEYS", limit)
    counts = count_depths(trace)
    assert np.array_equal(counts.warm, expected.warm)
    assert np.array_equal(counts.cold, expected.cold)


def test_a_step_looks_at_the_stack_before_it():
    lru_stack = LRUStack()
    assert lru_stack.push([2, 5]) == (COLD, COLD)
    assert lru_stack.push([2, 5]) == (0, 1)
    assert lru_stack.push([]) == ()
    assert lru_stack.push([1]) == (COLD,)
    assert lru_stack.push([2, 5]) == (1, 2)


def test_cold_is_a_miss_at_every_capacity():
    assert all(slots <= COLD for slots in (1, 128, 4096))
