"""A recording gives back what was recorded, and refuses what contradicts itself."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import TraceError
from wisp.kv_trace import KvEvent, KvTrace
from wisp.npz import read_fields, write_fields
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


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"prefill_tokens": ints(9, 0)}, "prefill_tokens must be 3 numbers"),
        ({"kv_pool_blocks": np.array(0)}, "a KV pool of 0 blocks"),
        ({"bits": np.zeros((2, 3), dtype=np.uint8)}, "cannot hold sets of 8 experts"),
    ],
)
def test_a_file_that_contradicts_itself_is_named_with_the_remedy(tmp_path, change, told):
    path = tmp_path / "r.npz"
    make_recording().save(path)
    write_fields(path, {**read_fields(path), **change})
    with pytest.raises(TraceError, match=rf"r\.npz contradicts itself: .*{told}.*; record it anew"):
        Recording.load(path)


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
    for late in ({"steps": ints(0, 0, 1, 3)}, {"preemptions": ints(3)}):
        with pytest.raises(TraceError, match="step 3 but the recording has 3 steps"):
            make_recording(kv=make_kv(**late))


def test_a_file_with_a_part_missing_is_refused(tmp_path):
    fields = ROUTING.fields() | make_kv().fields()
    del fields["kv_events"]
    with (tmp_path / "part.npz").open("wb") as file:
        np.savez_compressed(file, **fields)
    with pytest.raises(TraceError, match=r"lacks a part .*kv_events.*record it anew"):
        Recording.load(tmp_path / "part.npz")
    with pytest.raises(TraceError, match="cannot be read"):
        Recording.load(tmp_path / "none.npz")


@st.composite
def cut_recordings(draw):
    """A recording of what may be known, and where to cut it."""
    steps = draw(st.integers(1, 8))
    counts = st.lists(st.integers(0, 9), min_size=steps, max_size=steps).map(lambda values: ints(*values))
    routing = RoutingTrace.from_steps(
        8, [[draw(st.sets(st.integers(0, 7))) for _ in range(steps)] for _ in range(2)], draw(st.none() | counts)
    )
    of_steps = st.lists(st.integers(0, steps - 1), max_size=6).map(sorted)
    references = draw(of_steps)
    kv = make_kv(
        blocks=ints(*range(len(references)), dtype=np.uint64),
        steps=ints(*references),
        events=ints(*(draw(st.sampled_from(KvEvent)) for _ in references), dtype=np.uint8),
        preemptions=ints(*draw(of_steps)),
    )
    recording = Recording(
        routing,
        draw(st.none() | counts),
        draw(st.none() | counts),
        draw(st.none() | st.just(5)),
        draw(st.sampled_from((kv, None))),
    )
    return recording, [0, *sorted(draw(st.sets(st.integers(0, steps)))), steps]


@given(cut_recordings())
def test_pieces_sent_and_joined_are_the_whole(given_recording):
    recording, cuts = given_recording
    pieces = [recording.part(start, stop) for start, stop in pairwise(cuts)]
    again = Recording.join([Recording.from_bytes(piece.to_bytes(), "a server") for piece in pieces])
    fields, whole = again._fields(), recording._fields()
    assert fields.keys() == whole.keys()
    for name, array in whole.items():
        assert np.array_equal(fields[name], array), name
        assert fields[name].dtype == array.dtype


def test_pieces_of_different_runs_do_not_join():
    for other in (make_recording(expert_bytes=1), make_recording(kv=None), make_recording(requests=None)):
        with pytest.raises(TraceError, match="pieces of different runs"):
            Recording.join([make_recording(), other])
    with pytest.raises(TraceError, match="nothing was recorded"):
        Recording.join([])
    with pytest.raises(TraceError, match="the server's answer is damaged or cut short"):
        Recording.from_bytes(make_recording().to_bytes()[:-40], "the server's answer")


@pytest.mark.parametrize("keep", [0, 2, 40, 400, -1])
def test_a_file_that_is_cut_short_is_refused(tmp_path, keep):
    make_recording().save(tmp_path / "run.npz")
    data = (tmp_path / "run.npz").read_bytes()
    (tmp_path / "run.npz").write_bytes(data[:keep])
    with pytest.raises(TraceError, match=r"is damaged or cut short at \d+ bytes"):
        Recording.load(tmp_path / "run.npz")


def test_a_foreign_file_and_a_newer_one_are_refused(tmp_path):
    (tmp_path / "text.npz").write_text("step,layer,experts\n")
    with pytest.raises(TraceError, match="is not a routing trace"):
        Recording.load(tmp_path / "text.npz")
    np.savez(tmp_path / "other.npz", bits=np.zeros(3))
    with pytest.raises(TraceError, match=r"is an \.npz but not a routing trace"):
        Recording.load(tmp_path / "other.npz")
    np.savez(tmp_path / "newer.npz", **(make_recording()._fields() | {"version": np.array(2)}))
    with pytest.raises(TraceError, match="has trace version 2 but this wisp reads up to 1"):
        Recording.load(tmp_path / "newer.npz")
