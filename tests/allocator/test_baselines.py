"""What the other ways to divide a budget do, and that none of them beats MV-WSA among those that serve."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.allocator import Budget, Rates, split
from wisp.allocator.baselines import BASELINES, expert_first, flux_prop, half_and_half, static_oracle
from wisp.errors import AdmissionFloorError

EXPERTS = 10


def rates_of(expert, kv):
    ones = np.ones(EXPERTS + 1)
    return Rates(np.asarray(expert, dtype=float), 1.0, 0 * ones, kv, ones)


FALLING = rates_of(np.arange(EXPERTS, -1, -1), lambda blocks: 5 / (1 + blocks))
ROOM = Budget(100, 10, 3, 2, EXPERTS, 5)


def test_half_and_half_gives_half():
    chosen = half_and_half(ROOM, FALLING)
    assert (chosen.expert_slots, chosen.kv_blocks, chosen.is_admissible) == (5, 16, True)


def test_flux_prop_does_not_look_at_kv():
    chosen = flux_prop(ROOM, FALLING)
    assert (chosen.expert_slots, chosen.kv_blocks, chosen.is_admissible) == (10, 0, False)


def test_flux_prop_asks_for_no_more_than_its_demand():
    misses = np.maximum(np.arange(EXPERTS, -1, -1) - 4, 1)  # nothing more to save from 5 slots on
    assert flux_prop(ROOM, rates_of(misses, lambda blocks: 0.0)).expert_slots == 5


def test_expert_first_leaves_the_floor():
    chosen = expert_first(ROOM, FALLING)
    assert (chosen.expert_slots, chosen.kv_blocks, chosen.is_admissible) == (8, 6, True)


def test_half_of_too_little_is_told_to_be_inadmissible():
    assert not half_and_half(Budget(20, 10, 1, 2, EXPERTS, 1), FALLING).is_admissible


@pytest.mark.parametrize("choose", [expert_first, static_oracle])
def test_those_that_keep_the_floor_refuse_where_it_does_not_fit(choose):
    with pytest.raises(AdmissionFloorError):
        choose(Budget(30, 10, 3, 2, EXPERTS, 5), FALLING)


@given(
    st.lists(st.integers(0, 9), min_size=EXPERTS + 1, max_size=EXPERTS + 1),
    st.integers(0, 30),
    st.integers(35, 200),
)
def test_none_that_serves_loses_less_than_the_split(misses, scale, room):
    rates = rates_of(sorted(misses, reverse=True), lambda blocks: scale / (1 + blocks))
    budget = Budget(room, 10, 3, 2, EXPERTS, 5)
    best = split(budget, rates).choice
    assert static_oracle(budget, rates) == best
    for choose in BASELINES.values():
        chosen = choose(budget, rates)
        assert chosen.seconds_lost >= best.seconds_lost or not chosen.is_admissible
