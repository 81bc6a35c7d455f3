"""MV-WSA takes the least of all admissible splits; on convex curves that is where a byte is worth the same twice."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.allocator import Budget, Rates, split
from wisp.errors import AdmissionFloorError, ConfigError

EXPERTS = 24
SLOT, BLOCK = 7, 2
"""Bytes: a slot is no whole number of blocks."""


def budget_of(total, *, floor=4, least=2):
    return Budget(total, SLOT, BLOCK, least, EXPERTS, floor)


def rates_of(expert, kv, *, streamed=None, kv_cost=None):
    """`kv[i]`: seconds lost with i blocks; beyond its end nothing more is saved."""
    ones = np.ones(EXPERTS + 1)
    return Rates(
        np.asarray(expert, dtype=float),
        1.0,
        0 * ones if streamed is None else streamed,
        lambda blocks: float(kv[min(blocks, len(kv) - 1)]),
        ones if kv_cost is None else kv_cost,
    )


def falling(steps):
    """A curve that falls by these steps to 0."""
    return np.concatenate([np.cumsum(steps[::-1])[::-1], [0]])


STEPS = st.integers(0, 50)
ANY_EXPERT = st.lists(STEPS, min_size=EXPERTS, max_size=EXPERTS).map(falling)
ANY_KV = st.lists(STEPS, min_size=1, max_size=90).map(falling)
CONVEX_EXPERT = st.lists(STEPS, min_size=EXPERTS, max_size=EXPERTS).map(lambda s: falling(sorted(s, reverse=True)))
CONVEX_KV = st.lists(STEPS, min_size=1, max_size=90).map(lambda s: falling(sorted(s, reverse=True)))
ROOM = st.integers(2 * SLOT + 4 * BLOCK, 30 * SLOT)


def greedy(budget, rates):
    """Slot after slot, as long as the next is worth more than the blocks it takes."""
    slots = list(budget.admissible_slots())
    lost = [rates.candidate(each, budget.blocks_left(each)).seconds_lost for each in slots]
    place = 0
    while place + 1 < len(slots) and lost[place + 1] < lost[place]:
        place += 1
    return lost[place]


@given(ANY_EXPERT, ANY_KV, ROOM)
def test_no_admissible_split_loses_less(expert, kv, room):
    budget, rates = budget_of(room), rates_of(expert, kv)
    answer = split(budget, rates)
    for slots in range(EXPERTS + 1):
        blocks = (room - slots * SLOT) // BLOCK
        if slots >= budget.least_slots and blocks >= budget.floor_blocks:
            assert answer.choice.seconds_lost <= expert[slots] + kv[min(blocks, len(kv) - 1)]


CLIFF = st.tuples(st.integers(1, EXPERTS - 1), st.integers(1, 400)).map(
    lambda cliff: np.where(np.arange(EXPERTS + 1) < cliff[0], cliff[1], 0)
)
KV_CLIFF = st.tuples(st.integers(1, 89), st.integers(1, 400)).map(
    lambda cliff: np.where(np.arange(90) < cliff[0], cliff[1], 0)
)
COSTS = st.lists(st.integers(0, 20), min_size=EXPERTS + 1, max_size=EXPERTS + 1).map(
    lambda costs: np.array(sorted(costs, reverse=True), dtype=float)
)


@given(ANY_EXPERT, CLIFF, ANY_KV, KV_CLIFF, COSTS, COSTS, ROOM)
def test_the_choice_is_the_one_of_brute_force_whatever_the_cliffs(expert, cliff, kv, kv_cliff, streamed, cost, room):
    """Over every whole number of slots, with costs that fall with slots; of equals the fewest slots."""
    kv = np.concatenate([kv, np.zeros(max(0, 90 - len(kv)))]) + np.concatenate(
        [kv_cliff, np.zeros(max(0, len(kv) - 90))]
    )
    budget, rates = budget_of(room), rates_of(expert + cliff, kv, streamed=streamed, kv_cost=cost)
    lost = {}
    for slots in range(budget.least_slots, EXPERTS + 1):
        blocks = (room - slots * SLOT) // BLOCK
        if blocks >= budget.floor_blocks:
            lost[slots] = expert[slots] + cliff[slots] + streamed[slots] + cost[slots] * kv[min(blocks, len(kv) - 1)]
    answer = split(budget, rates)
    assert [each.expert_slots for each in answer.candidates] == list(lost)
    assert answer.choice.expert_slots == min(lost, key=lambda slots: (lost[slots], slots))
    assert answer.choice.seconds_lost == lost[answer.choice.expert_slots]


@given(st.floats(1, 1000), st.floats(2, 20), st.floats(1, 1000), st.floats(2, 60), st.integers(60, 200))
def test_on_smooth_convex_curves_a_byte_is_worth_the_same_on_either_side(expert, reach, kv, kv_reach, room):
    """c_exp m_exp'(C) / a = c_kv m_kv'(kappa) / b somewhere within a slot of an interior choice."""
    slots = np.arange(EXPERTS + 1)
    budget = Budget(room, SLOT, 1, 2, EXPERTS, 4)
    ones = np.ones(EXPERTS + 1)
    rates = Rates(expert * np.exp(-slots / reach), 1.0, 0 * ones, lambda kept: kv * np.exp(-kept / kv_reach), ones)
    choice = split(budget, rates).choice

    def worth_more_as_slots(at):
        """Of a byte, by the derivatives."""
        as_slots = expert / reach * np.exp(-at / reach) / SLOT
        return as_slots - kv / kv_reach * np.exp(-(room - at * SLOT) / kv_reach)

    last = budget.admissible_slots()[-1]
    if 2 < choice.expert_slots < last:
        assert worth_more_as_slots(choice.expert_slots - 1) >= 0 >= worth_more_as_slots(choice.expert_slots + 1)
    elif choice.expert_slots == 2 < last:
        assert worth_more_as_slots(3) <= 0
    elif last > 2:
        assert worth_more_as_slots(last - 1) >= 0


@given(CONVEX_EXPERT, CONVEX_KV, ROOM)
def test_on_convex_curves_a_slot_is_worth_its_blocks(expert, kv, room):
    """The paper's condition in whole slots: the next is worth no more than its blocks, the last no less."""
    budget, rates = budget_of(room), rates_of(expert, kv)
    answer = split(budget, rates)
    slots = answer.choice.expert_slots
    if slots + 1 in budget.admissible_slots():
        given_up = kv_lost(kv, budget, slots + 1) - kv_lost(kv, budget, slots)
        assert expert[slots] - expert[slots + 1] <= given_up
    if slots - 1 in budget.admissible_slots():
        gained = kv_lost(kv, budget, slots) - kv_lost(kv, budget, slots - 1)
        assert expert[slots - 1] - expert[slots] >= gained


@given(CONVEX_EXPERT, CONVEX_KV, st.integers(2, 30))
def test_on_convex_curves_following_the_margin_finds_it(expert, kv, room_in_slots):
    """Where slots are whole blocks, so that rounding bends no curve, and where no step is worth nothing."""
    expert, kv = expert + np.arange(EXPERTS, -1, -1), np.asarray(kv)
    budget = Budget(room_in_slots * SLOT + 4, SLOT, 1, 2, EXPERTS, 4)
    rates = rates_of(expert, kv)
    best = split(budget, rates).choice.seconds_lost
    lost = [each.seconds_lost for each in split(budget, rates).candidates]
    assert all(after - here >= here - before for before, here, after in zip(lost, lost[1:], lost[2:], strict=False))
    turning = next((i for i in range(len(lost) - 1) if lost[i + 1] > lost[i]), len(lost) - 1)
    assert lost[turning] == best


def kv_lost(kv, budget, slots):
    return kv[min(budget.blocks_left(slots), len(kv) - 1)]


def test_a_cliff_that_the_margin_does_not_see_is_found():
    expert = np.where(np.arange(EXPERTS + 1) < 12, 100.0, 0.0)  # a loop over 12 experts: no hit before the last
    kv = falling([0.1] * 90)
    budget, rates = budget_of(16 * SLOT), rates_of(expert, kv)
    assert split(budget, rates).choice.expert_slots == 12
    assert greedy(budget, rates) > 10 * split(budget, rates).choice.seconds_lost


def test_a_cliff_of_kv_is_found():
    kv = np.where(np.arange(60) < 40, 100.0, 0.0)  # so many blocks hold all conversations, fewer none
    expert = falling([1.0] * EXPERTS)
    budget, rates = budget_of(16 * SLOT), rates_of(expert, kv)
    assert split(budget, rates).choice.kv_blocks >= 40
    assert split(budget, rates).choice.expert_slots == (16 * SLOT - 40 * BLOCK) // SLOT


@given(ANY_EXPERT, ANY_KV, ROOM, st.integers(0, 40))
def test_more_budget_never_loses_more(expert, kv, room, more):
    rates = rates_of(expert, kv)
    assert split(budget_of(room + more), rates).choice.seconds_lost <= split(budget_of(room), rates).choice.seconds_lost


@given(ANY_EXPERT, ANY_KV, st.integers(0, 30 * SLOT), st.integers(0, 40), st.integers(1, 8))
def test_it_never_goes_below_the_floor(expert, kv, room, floor, least):
    budget = budget_of(room, floor=floor, least=least)
    if room < least * SLOT + floor * BLOCK:
        with pytest.raises(AdmissionFloorError) as refused:
            split(budget, rates_of(expert, kv))
        assert refused.value.need_bytes - refused.value.budget_bytes == least * SLOT + floor * BLOCK - room
        return
    for candidate in split(budget, rates_of(expert, kv)).candidates:
        assert candidate.expert_slots >= least
        assert candidate.kv_blocks >= floor
        assert candidate.expert_slots * SLOT + candidate.kv_blocks * BLOCK <= room


def test_of_equals_the_one_with_most_kv_is_taken():
    answer = split(budget_of(16 * SLOT), rates_of(np.zeros(EXPERTS + 1), [0]))
    assert answer.choice.expert_slots == 2
    assert answer.runner_up.expert_slots == 3


def test_a_cost_of_kv_that_falls_with_slots_counts():
    """A lost block is cheaper the more experts are resident: what the paper's constant beta leaves out."""
    expert, kv = np.zeros(EXPERTS + 1), [5.0]
    cost = np.linspace(10, 1, EXPERTS + 1)
    assert split(budget_of(16 * SLOT), rates_of(expert, kv, kv_cost=cost)).choice.expert_slots == 14
    streamed = np.linspace(3, 0, EXPERTS + 1)
    assert split(budget_of(16 * SLOT), rates_of(expert, [0], streamed=streamed)).choice.expert_slots == 14


def test_the_value_of_more_is_what_more_would_save():
    rates = rates_of(falling([1.0] * EXPERTS), falling([0.1] * 90))
    mib = 2**20
    budget = Budget(1024 * mib, 64 * mib, 32 * mib, 2, EXPERTS, 4)
    answer = split(budget, rates)
    assert answer.value_of_more_experts == pytest.approx(2)  # two slots
    assert answer.value_of_more_kv == pytest.approx(0.4)  # four blocks


def test_one_way_to_divide_has_no_runner_up():
    answer = split(budget_of(2 * SLOT + 4 * BLOCK), rates_of(np.zeros(EXPERTS + 1), [0]))
    assert answer.runner_up is None


def test_rates_of_another_number_of_experts_are_refused():
    with pytest.raises(ConfigError, match="24 experts"):
        split(budget_of(100), Rates(np.zeros(4), 1.0, np.zeros(4), lambda blocks: 0.0, np.zeros(4)))
