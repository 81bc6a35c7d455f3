"""A device's page table shrinks as `ResidentSet` does."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wisp.pager.resize import resized_table
from wisp.policies import LRU
from wisp.resident import ResidentSet

EXPERTS = 12


@given(
    steps=st.lists(st.sets(st.integers(0, EXPERTS - 1), max_size=EXPERTS), max_size=20),
    before=st.integers(1, EXPERTS),
    after=st.integers(1, EXPERTS),
)
def test_it_evicts_and_moves_what_the_host_does(steps, before, after):
    resident = ResidentSet(EXPERTS, before, LRU())
    last_used = np.zeros(EXPERTS, dtype=np.int64)
    for number, step in enumerate(steps, start=1):
        resident.plan(step, direct=True)
        last_used[list(step)] = number
    slot_of = resident.slot_table()
    after = min(after, before)
    plan = resident.resize(after)
    assert resized_table(slot_of, last_used, after) == plan
    assert slot_of.tolist() == resident.slot_table().tolist()
    assert sorted(slot_of[slot_of >= 0]) == list(range(len(resident.resident)))  # from the lowest up
