"""The resident set never lies about what is where, whatever it is asked in whatever order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wisp.errors import ConfigError, StepError, WorkingSetTooLargeError
from wisp.policies import LRU, POLICIES, make_policy
from wisp.resident import NOT_RESIDENT, Load, Move, PagePlan, ResidentSet, ResizePlan, Wave

EXPERTS = 12
STEP = st.sets(st.integers(0, EXPERTS - 1), max_size=EXPERTS).map(sorted)


def state(resident):
    return dict(resident.slot_of), resident.free_slots, resident.slots


class Device:
    """Follows plans as a pager does: `holds` is what the slots really contain, `table` where to look."""

    def __init__(self):
        self.holds, self.table = {}, {}

    def follow(self, plan, copies=10**9):
        """Carry out the plan until so many loads are done; True if nothing failed."""
        for wave in plan.waves:
            for expert in wave.evictions:
                del self.table[expert]
            for expert, slot in wave.loads:
                assert slot not in self.table.values(), "a load overwrites a resident expert"
                self.table[expert] = slot
                self.holds[slot] = "torn"
                if copies == 0:
                    return False
                copies -= 1
                self.holds[slot] = expert
            for expert in wave.experts:
                assert self.holds[self.table[expert]] == expert, "the wave computes with wrong weights"
        return True


class ResidentSetMachine(RuleBasedStateMachine):
    @initialize(slots=st.integers(1, EXPERTS), policy=st.sampled_from(POLICIES))
    def start(self, slots, policy):
        self.resident = ResidentSet(EXPERTS, slots, make_policy(policy))
        self.device = Device()

    @rule(step=STEP)
    def run_a_step(self, step):
        before, slots = set(self.resident.resident), self.resident.slots
        plan = self.resident.plan(step)
        assert self.device.follow(plan)
        assert self.device.table == self.resident.slot_of
        assert sorted(expert for wave in plan.waves for expert in wave.experts) == step
        assert len(plan.waves) == max(1, -(-len(step) // slots))
        assert all(len(wave.experts) <= slots for wave in plan.waves)
        assert all(list(wave.experts) == sorted(wave.experts) for wave in plan.waves)
        assert plan.faults == len(set(step) - before)
        assert before & set(step) <= set(plan.waves[0].experts)
        assert before | set(step) >= set(self.resident.resident)
        if len(step) <= slots:
            assert set(step) <= set(self.resident.resident)
            assert len(plan.evictions) == max(0, len(before | set(step)) - slots)

    @rule(step=STEP, copies=st.integers(0, EXPERTS))
    def lose_a_copy(self, step, copies):
        before = set(self.resident.resident)
        plan = self.resident.plan(step)
        if self.device.follow(plan, copies):
            return
        held = set(self.resident.resident)
        dropped = self.resident.abandon(plan)
        assert set(dropped) == held - before
        assert set(self.resident.resident) == held - set(dropped)
        self.device.table = dict(self.resident.slot_of)

    @rule(slots=st.integers(1, EXPERTS))
    def resize(self, slots):
        before = dict(self.resident.slot_of)
        change = self.resident.resize(slots)
        assert len(change.evictions) == max(0, len(before) - slots)
        assert set(before) - set(change.evictions) == set(self.resident.resident)
        if slots >= max(before.values(), default=-1) + 1:
            assert change.moves == ()
        for expert in change.evictions:
            del self.device.table[expert]
        for expert, from_slot, to_slot in change.moves:
            assert from_slot >= slots > to_slot
            assert self.device.table[expert] == from_slot
            assert to_slot not in self.device.table.values()
            self.device.holds[to_slot] = self.device.holds[from_slot]
            self.device.table[expert] = to_slot
        assert self.device.table == self.resident.slot_of

    @rule(expert=st.integers(0, EXPERTS - 1))
    def forget(self, expert):
        self.resident.forget(expert)
        assert expert not in self.resident.slot_of
        self.device.table.pop(expert, None)

    @rule(step=STEP, wrong=st.sampled_from([-1, EXPERTS, 10**6]))
    def name_an_expert_that_does_not_exist(self, step, wrong):
        before = state(self.resident)
        with pytest.raises(StepError, match="0 to 11"):
            self.resident.plan([*step, wrong])
        assert state(self.resident) == before

    @precondition(lambda self: self.resident.slots < EXPERTS)
    @rule(data=st.data())
    def ask_one_wave_for_too_much(self, data):
        before, slots = state(self.resident), self.resident.slots
        width = data.draw(st.integers(slots + 1, EXPERTS))
        with pytest.raises(WorkingSetTooLargeError) as caught:
            self.resident.plan(range(width), single_wave=True)
        assert (caught.value.need, caught.value.slots) == (width, slots)
        assert state(self.resident) == before

    @invariant()
    def the_bytes_are_where_the_table_says(self):
        if hasattr(self, "resident"):
            for expert, slot in self.resident.slot_of.items():
                assert self.device.holds[slot] == expert

    @invariant()
    def slots_are_a_partition(self):
        if hasattr(self, "resident"):
            taken = list(self.resident.slot_of.values())
            assert sorted([*taken, *self.resident.free_slots]) == list(range(self.resident.slots))
            assert list(self.resident.free_slots) == sorted(self.resident.free_slots)
            table = self.resident.slot_table()
            assert {e: int(s) for e, s in enumerate(table) if s != NOT_RESIDENT} == self.resident.slot_of


TestResidentSet = ResidentSetMachine.TestCase
TestResidentSet.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def naive_plan(slot_of, last_use, now, step):
    """The fault this design rules out: victims are chosen one by one while copying, uses noted afterwards."""
    for expert in step:
        if expert not in slot_of:
            oldest = min(slot_of, key=lambda e: last_use.get(e, -1))
            slot_of[expert] = slot_of.pop(oldest)
    last_use.update(dict.fromkeys(step, now))
    return set(step) <= set(slot_of)


def test_an_expert_loaded_in_this_step_is_not_evicted_in_this_step():
    steps = [sorted(np.random.default_rng(now).choice(EXPERTS, 4, replace=False)) for now in range(200)]
    slot_of, last_use = {expert: expert for expert in range(4)}, {}
    naive = [naive_plan(slot_of, last_use, now, step) for now, step in enumerate(steps)]
    assert naive.count(False) > 100  # the routing does provoke it
    resident, device = ResidentSet(EXPERTS, 4, LRU()), Device()
    for step in steps:
        assert device.follow(resident.plan(step))
        assert set(step) <= set(resident.resident)


@given(st.lists(STEP, min_size=1, max_size=20), st.integers(1, EXPERTS), st.sampled_from(POLICIES))
def test_no_wave_evicts_what_it_computes(steps, slots, policy):
    resident = ResidentSet(EXPERTS, slots, make_policy(policy))
    for step in steps:
        done = set()
        for wave in resident.plan(step).waves:
            assert not set(wave.evictions) & (set(step) - done)
            done |= set(wave.experts)


def test_missing_experts_take_free_slots_and_then_those_of_the_victims():
    resident = ResidentSet(9, 4, LRU())
    assert resident.plan([5, 2]).loads == (Load(2, 0), Load(5, 1))
    assert resident.plan([1]).loads == (Load(1, 2),)
    plan = resident.plan([6, 8, 7])
    assert plan.evictions == (5, 2)
    assert plan.loads == (Load(6, 3), Load(7, 1), Load(8, 0))
    assert dict(resident.slot_of) == {1: 2, 6: 3, 7: 1, 8: 0}
    assert resident.slot_table().tolist() == [-1, 2, -1, -1, -1, -1, 3, 1, 0]
    assert resident.slot_table().dtype == np.int32


def test_a_wide_step_serves_the_resident_experts_first():
    resident = ResidentSet(8, 3, LRU())
    resident.plan([2, 6])
    plan = resident.plan(range(8))
    assert [wave.experts for wave in plan.waves] == [(0, 2, 6), (1, 3, 4), (5, 7)]
    assert plan.faults == 6
    assert plan.waves[1].evictions == (6, 2, 0)


def test_a_step_is_taken_as_a_set():
    resident = ResidentSet(8, 4, LRU())
    assert resident.plan(np.array([5, 1, 5])).waves[0].experts == (1, 5)
    assert resident.plan([]) == PagePlan((Wave((), (), ()),))


def test_shrinking_says_what_it_evicts_and_what_moves():
    resident = ResidentSet(8, 5, LRU())
    for expert in (3, 1, 4, 0, 5):
        resident.plan([expert])
    resident.plan([3])
    assert resident.resize(2) == ResizePlan((1, 4, 0), (Move(5, 4, 1),))
    assert dict(resident.slot_of) == {3: 0, 5: 1}
    assert resident.resize(4) == ResizePlan((), ())
    assert resident.free_slots == (2, 3)


def test_the_table_cannot_be_written_from_outside():
    resident = ResidentSet(8, 4, LRU())
    resident.plan([1])
    with pytest.raises(TypeError):
        resident.slot_of[2] = 0
    resident.slot_table()[:] = 7
    assert dict(resident.slot_of) == {1: 0}
    assert (resident.slots, resident.resident, resident.free_slots) == (4, (1,), (1, 2, 3))


@pytest.mark.parametrize("slots", [0, -3, 9])
def test_slots_that_no_expert_could_use_are_refused(slots):
    with pytest.raises(ConfigError, match="between 1 and 8"):
        ResidentSet(8, slots, LRU())
    resident = ResidentSet(8, 4, LRU())
    resident.plan([1, 2])
    before = state(resident)
    with pytest.raises(ConfigError, match="between 1 and 8"):
        resident.resize(slots)
    assert state(resident) == before
    with pytest.raises(ConfigError, match="at least one expert"):
        ResidentSet(0, 1, LRU())
