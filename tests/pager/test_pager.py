"""Whatever the steps, the pager has the right bytes in the right slots, and counts what the simulator counts."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import WorkingSetTooLargeError
from wisp.pager.counters import Counters, PoolFacts
from wisp.pager.pager import ExpertPager
from wisp.pager.pool import SlotPool
from wisp.pager.store import HostStore
from wisp.policies import POLICIES, make_policy
from wisp.resident import NOT_RESIDENT, ResidentSet
from wisp.simulate import simulate
from wisp.trace import RoutingTrace, StepError

EXPERTS = 9
STEPS = st.lists(st.sets(st.integers(0, EXPERTS - 1)).map(sorted), min_size=1, max_size=12)
SLOTS = st.integers(1, EXPERTS)
POLICY = st.sampled_from(POLICIES)
every_policy = pytest.mark.parametrize("policy", POLICIES)


class FailingPool(SlotPool):
    """Breaks off in the middle of the copy that brings `fuse` to zero: one tensor of the expert has arrived."""

    fuse = -1

    def load(self, expert: int, slot: int) -> None:
        self.fuse -= 1
        if self.fuse == 0:
            name, frame = next(iter(self.tensors.items()))
            frame[slot].copy_(self._store.tensors[name][expert])
            raise OSError("the copy broke off")
        super().load(expert, slot)


def make_pager(slots, policy="lru", pool_class=SlotPool):
    like = {"w13": torch.empty(EXPERTS, 4, 6, dtype=torch.bfloat16), "w2": torch.empty(EXPERTS, 3)}
    store = HostStore(like)
    for tensor in store.tensors.values():
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)))
    counters = Counters(PoolFacts(EXPERTS, slots, store.expert_bytes, kernel="none", device="cpu"), capacity=2)
    counters.add_layer("other", page_locked=False)
    return ExpertPager(
        ResidentSet(EXPERTS, slots, make_policy(policy)),
        store,
        pool_class(store, slots, "cpu"),
        counters,
        layer=counters.add_layer("this", page_locked=False),
    )


def assert_bytes(pager, experts, slots_of):
    """Each of these experts is, whole, in the slot that the map gives it."""
    for expert in experts:
        for name, frame in pager.pool.tensors.items():
            assert torch.equal(frame[slots_of[expert]], pager.store.tensors[name][expert]), (expert, name)


def run(pager, step, **kwargs):
    """Run a step as a kernel would, checking every wave; returns the waves."""
    waves = []
    for wave in pager.step(step, **kwargs):
        slots_of = pager.slots_of(wave)
        assert slots_of.dtype == torch.int32
        assert slots_of.shape == (EXPERTS,)
        assert tuple(torch.nonzero(slots_of != NOT_RESIDENT).flatten().tolist()) == wave.experts
        assert_bytes(pager, wave.experts, slots_of)
        waves.append(wave)
    computed = [expert for wave in waves for expert in wave.experts]
    assert sorted(computed) == sorted(set(step)), "every expert of the step is computed once"
    assert_bytes(pager, pager.resident.resident, pager.resident.slot_of)
    return waves


@every_policy
@given(steps=STEPS, slots=SLOTS)
def test_every_wave_finds_its_experts_and_no_others(policy, steps, slots):
    pager = make_pager(slots, policy)
    for step in steps:
        waves = run(pager, step)
        assert len(waves) == max(1, -(-len(step) // slots))


@every_policy
@given(steps=STEPS, slots=SLOTS)
def test_the_pager_does_what_the_simulator_says_step_by_step(policy, steps, slots):
    pager = make_pager(slots, policy)
    replay = simulate(RoutingTrace.from_steps(EXPERTS, [steps]), slots, policy)
    before = pager._counters.layer(1)
    for index, step in enumerate(steps):
        run(pager, step)
        after = pager._counters.layer(1)
        moved = {name: after[name] - before[name] for name in after}
        assert moved.pop("copy_seconds") >= 0
        assert moved == {
            "steps": 1,
            "references": replay.references[0, index],
            "faults": replay.faults[0, index],
            "bytes_moved": replay.faults[0, index] * pager.store.expert_bytes,
            "evictions": replay.evictions[0, index],
            "waves": replay.waves[0, index],
        }
        before = after
    assert not any(pager._counters.layer(0).values()), "another layer's row stays as it is"


@every_policy
def test_the_slots_are_those_of_the_resident_set(policy):
    rng = np.random.default_rng(0)
    pager, oracle = make_pager(4, policy), ResidentSet(EXPERTS, 4, make_policy(policy))
    seen = []
    pager.observe = seen.append
    for _ in range(200):
        step = np.flatnonzero(rng.random(EXPERTS) < 0.4).tolist()
        run(pager, step)
        assert seen[-1] == oracle.plan(step)
        assert dict(pager.resident.slot_of) == dict(oracle.slot_of)


def test_a_waves_map_hides_the_residents_of_other_waves():
    pager = make_pager(2)
    run(pager, [0, 1])
    maps = [pager.slots_of(wave).tolist() for wave in pager.step([0, 1, 2, 3])]
    assert maps == [[0, 1, *[-1] * 7], [-1, -1, 1, 0, *[-1] * 5]]


def test_an_expert_loaded_for_a_wave_is_not_evicted_before_the_wave_has_run():
    pager = make_pager(3)
    for wave in pager.step(range(EXPERTS)):
        assert not set(wave.evictions) & set(wave.experts)
        assert_bytes(pager, wave.experts, pager.slots_of(wave))


def test_a_step_too_wide_for_one_wave_changes_nothing():
    pager = make_pager(2)
    run(pager, [3, 4])
    before = dict(pager.resident.slot_of), pager._counters.layer(1)
    with pytest.raises(WorkingSetTooLargeError, match="needs 3 experts at once but there are 2 slots"):
        run(pager, [3, 5, 6], single_wave=True)
    with pytest.raises(StepError, match="drop padding ids"):
        run(pager, [-1, 3])
    assert (dict(pager.resident.slot_of), pager._counters.layer(1)) == before
    assert not run(pager, [3, 4])[0].loads


@given(policy=POLICY, steps=STEPS, slots=SLOTS, fuse=st.integers(1, 20))
def test_a_copy_that_breaks_off_promises_nothing(policy, steps, slots, fuse):
    pager = make_pager(slots, policy, FailingPool)
    pager.pool.fuse = fuse
    for step in steps:
        try:
            run(pager, step)
        except OSError:
            assert_bytes(pager, pager.resident.resident, pager.resident.slot_of)
            run(pager, step)
    pager.pool.fuse = -1
    run(pager, steps[0])


@given(policy=POLICY, keep=st.booleans(), steps=STEPS, slots=SLOTS, data=st.data())
def test_a_kernel_that_fails_between_waves_promises_nothing(policy, keep, steps, slots, data):
    pager = make_pager(slots, policy)
    kept = []
    for step in steps:
        waves = pager.step(step)
        for number, _wave in enumerate(waves):
            if number == data.draw(st.integers(0, 3)):
                break
        kept += [waves] if keep else []
        del waves
        run(pager, steps[0])
    kept.clear()  # only now are the unfinished steps closed; they must not touch what has happened since
    for step in steps:
        run(pager, step)


def test_a_step_that_is_left_early_promises_nothing():
    pager = make_pager(2)
    step = pager.step([0, 1, 2, 3])
    next(step)
    assert len(run(pager, [2, 3])[0].loads) == 2
    step.close()
    assert not run(pager, [2, 3])[0].loads


def test_a_failing_observer_promises_nothing():
    pager = make_pager(2)
    pager.observe = lambda plan: 1 / 0
    with pytest.raises(ZeroDivisionError) as kept:
        run(pager, [0, 1])
    assert not pager.resident.resident
    pager.observe = None
    assert len(run(pager, [0, 1])[0].loads) == 2
    del kept


def test_going_on_with_a_step_after_the_next_has_begun_is_caught():
    pager = make_pager(2)
    stale = pager.step([0, 1, 2, 3])
    next(stale)
    run(pager, [4, 5])
    with pytest.raises(AssertionError, match="before this one has ended"):
        next(stale)
    run(pager, [4, 5, 6])


@given(steps=STEPS, slots=SLOTS)
def test_reset_starts_cold(steps, slots):
    pager, fresh = make_pager(slots), make_pager(slots)
    for step in steps:
        run(pager, step)
    pager.reset()
    assert not pager.resident.resident
    assert pager.resident.free_slots == tuple(range(slots))
    for step in steps:
        assert run(pager, step) == run(fresh, step)


def test_a_reset_between_the_waves_of_a_failed_step_starts_cold():
    pager = make_pager(2)
    step = pager.step(range(6))
    next(step)
    pager.reset()
    assert not pager.resident.resident
    run(pager, [0, 1])
