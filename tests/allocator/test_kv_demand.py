"""KV demand: by the prior what its docstring promises, by a recording what a replay counts."""

from dataclasses import replace

import numpy as np
import pytest

from wisp.allocator import Workload
from wisp.allocator.kv_demand import PriorKv, traced_kv
from wisp.allocator.kv_layout import KvLayout, kv_layout
from wisp.errors import TraceError
from wisp.kv_trace import KvEvent, KvTrace
from wisp.recording import Recording
from wisp.simulate import simulate_kv
from wisp.trace import RoutingTrace

WORKLOAD = Workload.typical(1024, 1)


def test_no_history_is_lost_above_the_floor_if_no_more_talk_than_run(shape):
    for name in ("qwen3-30b-a3b", "jamba-v0.1", "deepseek-v3"):
        layout, workload = kv_layout(shape(name)), Workload.typical(8192, 4)
        assert PriorKv(layout, workload).lost_share(layout.floor_blocks(8192, 4)) == 0


def test_histories_are_lost_in_proportion_to_what_has_no_room():
    layout = KvLayout(16, 1)
    workload = Workload.typical(1024, 2, conversations=10)
    each = -(-(512 + 256 + 256) // 16)
    assert PriorKv(layout, workload).lost_share(1) == 1
    assert PriorKv(layout, workload).lost_share(1 + 5 * each) == pytest.approx(0.5)
    assert PriorKv(layout, workload).lost_share(1 + 10 * each) == 0


def recorded(turns=12, conversations=3, blocks=4, lost=0):
    """Conversations that take turns; each comes back to its blocks, computes 20 new tokens, and decodes 3."""
    names, steps, events, tokens, prefill = [], [], [], [], []
    for turn in range(turns):
        step = 4 * turn
        for place in reversed(range(blocks)):
            names.append(100 * (turn % conversations) + place)
            steps.append(step)
            is_lost = place >= blocks - lost
            come_back = KvEvent.CAPACITY_MISS if is_lost else KvEvent.HIT
            events.append(KvEvent.INSERT if turn < conversations else come_back)
        computed = 20 + 16 * (lost if turn >= conversations else 0)
        prefill += [computed, 0, 0, 0]
        tokens += [computed, 1, 1, 1]
    kv = KvTrace(
        np.array(names, dtype=np.uint64),
        np.array(steps, dtype=np.int64),
        np.array(events, dtype=np.uint8),
        np.zeros(0, dtype=np.int64),
        16,
        1000,
    )
    member = np.ones((1, len(tokens), 4), dtype=np.bool_)
    routing = RoutingTrace.from_membership(member, np.array(tokens, dtype=np.int64))
    return Recording(routing, np.array(prefill, dtype=np.int64), np.ones(len(tokens), dtype=np.int64), kv=kv)


@pytest.mark.parametrize("lost", [0, 1, 4])
def test_the_turn_is_the_recorded_one_whatever_the_recorded_pool_lost(lost):
    found = traced_kv(recorded(lost=lost), KvLayout(16, 1), WORKLOAD)
    assert (found.workload.new, found.workload.output) == (20, 3)
    assert found.workload.history == 9 * 4 * 16 / 12
    assert replace(found.workload, history=0, new=0, output=0) == replace(WORKLOAD, history=0, new=0, output=0)
    assert "48 references to blocks of 16 tokens in 12 turns, of which 36 come back" in found.source


def test_what_is_lost_is_what_a_replay_loses():
    recording = recorded(conversations=3)
    found = traced_kv(recording, KvLayout(16, 1), WORKLOAD)
    for blocks in range(1, 16):
        replay = simulate_kv(recording.kv, blocks)
        assert found.lost_share(blocks + 2) == replay.capacity_misses / 36  # the null block, and one that is not full
    assert [found.lost_share(blocks) for blocks in (0, 2, 2 + 8, 2 + 12)] == [1, 1, 1, 0]


def test_blocks_of_another_length_hold_as_many_tokens():
    found = traced_kv(recorded(), KvLayout(64, 1), WORKLOAD)
    assert [found.lost_share(2 + blocks) for blocks in (2, 3)] == [1, 0]


def test_where_nothing_comes_back_nothing_is_lost():
    found = traced_kv(recorded(turns=3), KvLayout(16, 1), WORKLOAD)
    assert (found.lost_share(0), found.workload.history) == (0, 0)


def test_a_recording_that_says_nothing_of_turns_is_refused():
    recording = recorded()
    for changes, told in (
        ({"kv": None}, "no KV references"),
        ({"prefill_tokens": None}, "does not count"),
        ({"prefill_tokens": np.zeros(48, dtype=np.int64), "requests": np.full(48, 20)}, "no step .* computes a prompt"),
        ({"prefill_tokens": np.zeros(48, dtype=np.int64)}, "12 steps of the trace decode more tokens than"),
        ({"prefill_tokens": np.full(48, 20)}, "36 steps of the trace decode .* less than none"),
    ):
        with pytest.raises(TraceError, match=told):
            traced_kv(replace(recording, **changes), KvLayout(16, 1), WORKLOAD)
