"""KV reuse by stack depths equals a replay of the pool, at every size."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import ConfigError, TraceError
from wisp.kv_trace import KvEvent, KvTrace
from wisp.recording import Recording
from wisp.simulate import simulate_kv
from wisp.workingset import BlockHistogram, KvReuse, by_turn

TABLE5 = Path(__file__).parents[2] / "benchmarks" / "table5" / "traces"

STEPS = st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=6), max_size=25)
"""Steps of (block, whether it was computed though it was there)."""


def kv_trace(steps, *, pool=1000):
    """A trace of `steps`, lists of blocks; events as of a pool without end, unless (block, is_duplicate) is given."""
    blocks, numbers, events, known = [], [], [], set()
    for number, step in enumerate(steps):
        for each in step:
            name, twice = each if isinstance(each, tuple) else (each, False)
            blocks.append(name)
            numbers.append(number)
            events.append(KvEvent.DUPLICATE if twice else KvEvent.HIT if name in known else KvEvent.INSERT)
            known.add(name)
    as_ints = [np.array(values, dtype=dtype) for values, dtype in ((blocks, "uint64"), (numbers, "int64"))]
    return KvTrace(*as_ints, np.array(events, dtype=np.uint8), np.zeros(0, dtype=np.int64), 16, pool)


def turn(conversation, blocks):
    """A request to the first so many blocks of a conversation, from the last to the first."""
    return [100 * conversation + place for place in reversed(range(blocks))]


@given(STEPS)
def test_depths_equal_a_replay_at_every_size(steps):
    trace = kv_trace(steps)
    reuse = KvReuse.of(trace)
    for blocks in range(1, 13):
        replay = simulate_kv(trace, blocks)
        assert (reuse.kept(blocks), reuse.lost(blocks)) == (replay.hits, replay.capacity_misses)
        assert reuse.returns == replay.returns.sum()
    curve = reuse.curve()
    for blocks in range(curve.num_experts + 1):
        assert curve.misses_at(blocks) == reuse.new_blocks + reuse.lost(blocks)


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=25))
def test_the_online_histogram_counts_the_same(steps):
    trace = kv_trace(steps)
    reuse, histogram = KvReuse.of(trace), BlockHistogram(max_blocks=12, half_life_steps=None)
    for number in range(len(steps)):
        histogram.observe(trace.blocks[trace.steps == number], number)
    for blocks in range(1, 13):
        assert histogram.curve().misses_at(blocks) == reuse.new_blocks + reuse.lost(blocks)


def test_a_pool_in_between_keeps_the_beginning_of_a_conversation():
    trace = kv_trace([turn(0, 10), turn(1, 4), turn(0, 10)])
    assert sorted(KvReuse.of(trace).depths) == list(range(4, 14))
    replay = simulate_kv(trace, 8)
    assert replay.hits == 4
    assert np.flatnonzero(replay.found).tolist() == [20, 21, 22, 23]  # the last four references: its first blocks


def test_conversations_in_turn_are_all_kept_or_not_at_all():
    trace = kv_trace([turn(each, 5) for _ in range(4) for each in range(3)])
    reuse = KvReuse.of(trace)
    assert [reuse.lost_share(blocks) for blocks in (10, 15)] == [1, 0]
    assert reuse.widest_step == 5
    assert reuse.new_blocks == reuse.distinct_blocks == 15


@pytest.mark.parametrize("blocks", [68, 84])
def test_a_small_pools_engine_found_what_any_recording_predicts(blocks):
    """One run of benchmarks/table5/record.py, with 1,024 blocks and again with --num-gpu-blocks-override 68 and 84.

    Of the blocks one is never given away, and one is not full.
    """
    large = KvReuse.of(Recording.load(TABLE5 / "mixed-few-long.npz").kv)
    recording = Recording.load(Path(__file__).parent / "traces" / f"{blocks}-blocks.npz")
    assert recording.kv.pool_blocks == blocks
    assert recording.kv.count(KvEvent.CAPACITY_MISS) > 30
    own = KvReuse.of(by_turn(recording))
    assert large.kept(blocks - 2) == own.kept(blocks - 2) == recording.kv.count(KvEvent.HIT)
    assert [own.kept(each) for each in range(120)] == [large.kept(each) for each in range(120)]


def test_turns_are_not_told_apart_where_requests_ran_side_by_side():
    recording = Recording.load(Path(__file__).parent / "traces" / "68-blocks.npz")
    assert by_turn(replace(recording, requests=recording.requests + 1)) is recording.kv
    assert by_turn(replace(recording, prefill_tokens=None)) is recording.kv
    with pytest.raises(TraceError, match="no KV references"):
        by_turn(replace(recording, kv=None))


def test_what_is_computed_twice_is_neither_kept_nor_lost():
    reuse = KvReuse.of(kv_trace([[3, 2, 1], [(3, True), 2, 1]]))
    assert (reuse.returns, reuse.computed_twice, reuse.new_blocks) == (2, 1, 3)


def test_without_references_nothing_is_lost():
    reuse = KvReuse.of(kv_trace([]))
    assert (reuse.lost_share(0), reuse.curve().references, reuse.distinct_blocks) == (0, 0, 0)


def test_a_pool_without_blocks_is_refused():
    with pytest.raises(ConfigError, match="0 blocks holds nothing"):
        simulate_kv(kv_trace([[1]]), 0)
