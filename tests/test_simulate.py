"""A replay counts what the resident set does, layer by layer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import ConfigError, UnknownPolicyError
from wisp.policies import OFFLINE_POLICIES, POLICIES
from wisp.simulate import simulate
from wisp.trace import RoutingTrace

EXPERTS = 8
STEPS = st.lists(st.sets(st.integers(0, EXPERTS - 1), max_size=6).map(sorted), min_size=1, max_size=25)


def test_a_replay_by_hand():
    trace = RoutingTrace.from_steps(4, [[[0, 1], [2], [0, 1, 2], [], [0]], [[3], [3], [3], [3], [3]]])
    replay = simulate(trace, 2)
    assert replay.references.tolist() == [[2, 1, 3, 0, 1], [1, 1, 1, 1, 1]]
    # Step 1 evicts 1; step 2 computes 0 and 2, evicts 2 and loads 1, since 2 is the older by its id.
    assert replay.faults.tolist() == [[2, 1, 1, 0, 0], [1, 0, 0, 0, 0]]
    assert replay.evictions.tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    assert replay.waves.tolist() == [[1, 1, 2, 1, 1], [1, 1, 1, 1, 1]]
    assert (replay.total_faults, replay.total_evictions, replay.total_references) == (5, 2, 12)
    assert replay.fault_ratio == 5 / 12
    assert replay.copied_bytes(9 * 2**20) == 5 * 9 * 2**20


@pytest.mark.parametrize("policy", [*POLICIES, *OFFLINE_POLICIES])
@given(steps=STEPS, slots=st.integers(1, EXPERTS))
def test_faults_stay_between_the_first_uses_and_all_uses(policy, steps, slots):
    replay = simulate(RoutingTrace.from_steps(EXPERTS, [steps]), slots, policy)
    assert len(set().union(*steps)) <= replay.total_faults <= replay.total_references
    assert replay.total_faults - replay.total_evictions <= slots
    if slots == EXPERTS:
        assert replay.total_faults == len(set().union(*steps))
        assert replay.total_evictions == 0


def test_one_layer_is_a_row_of_all():
    trace = RoutingTrace.from_membership(np.random.default_rng(0).random((3, 60, EXPERTS)) < 0.3)
    together = simulate(trace, 3, "lfru")
    for layer in range(3):
        alone = simulate(trace, 3, "lfru", layer=layer)
        assert np.array_equal(alone.faults[0], together.faults[layer])


def test_an_empty_trace_has_no_faults():
    replay = simulate(RoutingTrace.from_steps(4, [[], []]), 2)
    assert (replay.total_faults, replay.fault_ratio) == (0, 0.0)


def test_wrong_settings_are_refused():
    trace = RoutingTrace.from_steps(4, [[[0]]])
    with pytest.raises(UnknownPolicyError, match="lru"):
        simulate(trace, 2, "mru")
    for slots in (0, 5):
        with pytest.raises(ConfigError, match="between 1 and 4"):
            simulate(trace, slots)
