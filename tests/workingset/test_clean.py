"""Steps without a miss are those in which a replay faults on nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.simulate import simulate
from wisp.trace import RoutingTrace
from wisp.workingset import COLD, clean
from wisp.workingset.clean import clean_share, slots_without_miss

EXPERTS = 9
STEPS = st.lists(st.sets(st.integers(0, EXPERTS - 1), max_size=4).map(sorted), min_size=1, max_size=40)


@given(STEPS, st.sampled_from([1, 7, 2048]))
def test_clean_steps_equal_those_of_a_replay(steps, rows):
    trace = RoutingTrace.from_steps(EXPERTS, [steps, steps[::-1]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clean, "_ROWS", rows)
        needed = slots_without_miss(trace)
    for slots in range(max(map(len, steps), default=0) or 1, EXPERTS + 1):
        faults = simulate(trace, slots).faults
        assert np.array_equal(needed <= slots, faults == 0)
        assert clean_share(needed, slots) == np.mean(faults.sum(axis=0) == 0)


def test_a_step_by_hand():
    trace = RoutingTrace.from_steps(4, [[[0, 1], [2], [1], []]])
    assert slots_without_miss(trace).tolist() == [[COLD, COLD, 3, 0]]
    assert clean_share(slots_without_miss(RoutingTrace.from_steps(4, [[]])), 2) == 0.0
