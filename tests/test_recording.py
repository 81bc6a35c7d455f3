"""A recording gives back what was recorded, and refuses what contradicts itself."""

import numpy as np
import pytest

from wisp.errors import TraceError
from wisp.kv_trace import KvEvent, KvTrace
from wisp.recording import Recording
from wisp.trace import RoutingTrace

ROUTING = RoutingTrace.from_steps(8, [[[0, 1, 2], [3], [4, 5]], [[7], [6], [5, 4]]], [9, 1, 3])


def ints(*values, dtype=np.int64):
    return np.array(values, dtype=dtype)


def make_kv(**changes):
    fields = {
        "blocks": ints(11, 12, 11, 2**64 - 1, dtype=np.uint64),
        "steps": ints(0, 0, 1, 2),
        "events": ints(1, 1, 0, 2, dtype=np.uint8),
        "preemptions": ints(2),
        "block_tokens": 16,
        "pool_blocks": 40,
    }
    return KvTrace(**{**fields, **changes})


def make_recording(**changes):
    fields = {"prefill_tokens": ints(9, 0, 1), "requests": ints(1, 1, 3), "expert_bytes": 61_440, "kv": make_kv()}
    return Recording(ROUTING, **{**fields, **changes})


def test_save_and_load_round_trip(tmp_path):
    recording = make_recording()
    recording.save(tmp_path / "run.npz")
    again = Recording.load(tmp_path / "run.npz")
    assert again.routing == recording.routing
    assert again.prefill_tokens.tolist() == [9, 0, 1]
    assert again.requests.tolist() == [1, 1, 3]
    assert again.expert_bytes == 61_440
    assert again.kv.fields().keys() == recording.kv.fields().keys()
    for name, array in recording.kv.fields().items():
        assert np.array_equal(again.kv.fields()[name], array)
        assert again.kv.fields()[name].dtype == array.dtype


def test_a_recording_is_a_routing_trace_and_the_reverse(tmp_path):
    make_recording().save(tmp_path / "run.npz")
    assert RoutingTrace.load(tmp_path / "run.npz") == ROUTING
    ROUTING.save(tmp_path / "trace.npz")
    recording = Recording.load(tmp_path / "trace.npz")
    assert recording.routing == ROUTING
    assert (recording.prefill_tokens, recording.requests, recording.kv) == (None, None, None)


def test_phases_are_told_apart():
    recording = make_recording()
    assert recording.phase("decode").layer(0) == [(3,)]
    assert recording.phase("decode").tokens.tolist() == [1]
    assert recording.phase("auto") == recording.phase("decode")
    assert recording.phase("prefill").layer(1) == [(7,), (4, 5)]
    assert recording.phase("all") is ROUTING
    assert Recording(ROUTING).phase("auto") is ROUTING


def test_a_phase_that_is_unknown_or_empty_is_refused():
    with pytest.raises(TraceError, match="leave out --phase decode"):
        Recording(ROUTING).phase("decode")
    with pytest.raises(TraceError, match="is empty: none of its 0 steps of this phase"):
        make_recording(prefill_tokens=ints(1, 1, 1)).phase("decode")
    with pytest.raises(TraceError, match="is empty: none of its 1 steps requires"):
        Recording(RoutingTrace.from_steps(4, [[[]]])).phase("auto")


def test_events_are_counted():
    assert [make_kv().count(event) for event in KvEvent] == [1, 2, 1, 0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"blocks": ints(1, 2, 3, 4)}, "uint64"),
        ({"steps": ints(0, 0, 1)}, "3 steps"),
        ({"steps": ints(0, 2, 1, 2)}, "must not fall"),
        ({"steps": ints(-1, 0, 1, 2)}, "negative"),
        ({"events": ints(0, 1, 2, 4, dtype=np.uint8)}, "unknown KV event 4"),
        ({"pool_blocks": 0}, "does not exist"),
    ],
)
def test_kv_references_that_contradict_each_other_are_refused(changes, told):
    with pytest.raises(TraceError, match=told):
        make_kv(**changes)


def test_counts_that_do_not_fit_the_steps_are_refused():
    for name in ("prefill_tokens", "requests"):
        with pytest.raises(TraceError, match=f"{name} must be 3 numbers"):
            make_recording(**{name: ints(1, 1)})
    with pytest.raises(TraceError, match="0 bytes"):
        make_recording(expert_bytes=0)


def test_a_file_with_a_part_missing_is_refused(tmp_path):
    fields = ROUTING.fields() | make_kv().fields()
    del fields["kv_events"]
    with (tmp_path / "part.npz").open("wb") as file:
        np.savez_compressed(file, **fields)
    with pytest.raises(TraceError, match=r"lacks a part .*kv_events.*record it anew"):
        Recording.load(tmp_path / "part.npz")
    with pytest.raises(TraceError, match="cannot be read"):
        Recording.load(tmp_path / "none.npz")
