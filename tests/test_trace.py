"""A trace gives back what was recorded, and refuses files that it cannot trust."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import StepError, TraceError, WispError
from wisp.trace import RoutingTrace, TraceBuilder, as_step


@st.composite
def recordings(draw):
    experts = draw(st.integers(1, 20))
    layers, steps = draw(st.integers(1, 3)), draw(st.integers(0, 12))
    step = st.sets(st.integers(0, experts - 1), max_size=6)
    nested = [[sorted(draw(step)) for _ in range(steps)] for _ in range(layers)]
    counted = st.lists(st.integers(0, 2**40), min_size=steps, max_size=steps)
    return experts, nested, draw(st.none() | counted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("traces")


@given(recordings())
def test_a_layer_gives_back_the_recorded_steps(recording):
    experts, nested, tokens = recording
    trace = RoutingTrace.from_steps(experts, nested, tokens)
    assert (trace.num_experts, trace.layers, trace.steps) == (experts, len(nested), len(nested[0]))
    for layer, steps in enumerate(nested):
        assert [list(step) for step in trace.layer(layer)] == steps
        assert trace.widths()[layer].tolist() == [len(step) for step in steps]
        assert [np.flatnonzero(row).tolist() for row in trace.membership(layer)] == steps


@given(recordings())
def test_save_and_load_round_trip(folder, recording):
    trace = RoutingTrace.from_steps(*recording)
    trace.save(folder / "trace")
    again = RoutingTrace.load(folder / "trace")
    assert again == trace
    assert [again.layer(layer) for layer in range(again.layers)] == [
        trace.layer(layer) for layer in range(trace.layers)
    ]


def test_traces_that_differ_are_not_equal():
    trace = RoutingTrace.from_steps(9, [[[1], [2]]], [1, 1])
    for other in (
        RoutingTrace.from_steps(9, [[[1], [3]]], [1, 1]),
        RoutingTrace.from_steps(9, [[[1], [2]]], [1, 2]),
        RoutingTrace.from_steps(9, [[[1], [2]]]),
        RoutingTrace.from_steps(10, [[[1], [2]]], [1, 1]),
        RoutingTrace.from_steps(9, [[[1]]], [1]),
    ):
        assert trace != other


def test_membership_and_nested_steps_make_the_same_trace():
    member = np.random.default_rng(0).random((3, 50, 21)) < 0.2
    nested = [[np.flatnonzero(row) for row in layer] for layer in member]
    assert RoutingTrace.from_membership(member) == RoutingTrace.from_steps(21, nested)


def test_one_bit_an_expert():
    trace = RoutingTrace.from_membership(np.zeros((48, 100, 128), dtype=bool))
    assert trace._bits.nbytes == 100 * 768


def test_a_snapshot_does_not_follow_the_builder():
    builder = TraceBuilder(8, 1)
    builder.add([[3, 3, 1]])
    before = builder.trace()
    builder.add([[]])
    assert before.steps == 1
    assert builder.trace().layer(0) == [(1, 3), ()]


@pytest.mark.parametrize("wrong", [[8], [-1], [1, 99]])
def test_an_expert_out_of_range_is_refused_and_not_appended(wrong):
    builder = TraceBuilder(8, 2)
    with pytest.raises(StepError, match=f"expert {wrong[-1]} .* 0 to 7"):
        builder.add([[1], wrong])
    assert builder.trace().steps == 0


def test_a_step_is_normalised():
    assert as_step(np.array([5, 3, 5], dtype=np.int32), 8) == (3, 5)
    assert all(type(expert) is int for expert in as_step(np.array([5, 3]), 8))
    for wrong in ([1.5], ["1"], [[1, 2]]):
        with pytest.raises(StepError, match="integers"):
            as_step(wrong, 8)
    assert issubclass(StepError, ValueError)
    assert issubclass(StepError, WispError)


def test_contradictions_are_refused():
    with pytest.raises(TraceError, match=re.escape("[1, 2]")):
        RoutingTrace.from_steps(4, [[[1], [2]], [[1]]])
    builder = TraceBuilder(4, 2)
    with pytest.raises(TraceError, match="2 layers, not 1"):
        builder.add([[1]])
    builder.add([[1], [2]], tokens=3)
    with pytest.raises(TraceError, match="token count in every step"):
        builder.add([[1], [2]])
    with pytest.raises(TraceError, match="cannot hold"):
        RoutingTrace(np.zeros((1, 1, 1), np.uint8), 9)
    with pytest.raises(TraceError, match="beyond the 4"):
        RoutingTrace(np.ones((1, 1, 1), np.uint8), 4)
    with pytest.raises(TraceError, match="token counts"):
        RoutingTrace(np.zeros((1, 2, 1), np.uint8), 4, np.array([1]))


@pytest.fixture(scope="module")
def saved(folder):
    member = np.random.default_rng(1).random((2, 40, 16)) < 0.3
    trace = RoutingTrace.from_membership(member, np.arange(40))
    trace.save(folder / "whole.npz")
    return trace, (folder / "whole.npz").read_bytes()


@given(st.data())
def test_a_truncated_file_is_refused(folder, saved, data):
    _, whole = saved
    path = folder / "short.npz"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(TraceError, match=r"short\.npz"):
        RoutingTrace.load(path)


@given(st.data())
def test_a_damaged_byte_is_refused_or_harmless(folder, saved, data):
    trace, whole = saved
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    path = folder / "damaged.npz"
    path.write_bytes(damaged)
    try:
        loaded = RoutingTrace.load(path)
    except TraceError:
        return
    assert loaded == trace or loaded.tokens is None  # the name "tokens" in the directory is not covered by a sum


def test_the_error_says_what_the_file_is(folder, saved):
    _, whole = saved
    path = folder / "odd.npz"
    path.write_text("step,expert\n0,1\n")
    with pytest.raises(TraceError, match="not a routing trace"):
        RoutingTrace.load(path)
    path.write_bytes(b"")
    with pytest.raises(TraceError, match="cut short at 0 bytes"):
        RoutingTrace.load(path)
    path.write_bytes(whole[:500])
    with pytest.raises(TraceError, match=r"cut short at 500 bytes.*copy it again"):
        RoutingTrace.load(path)
    np.savez(path, weights=np.zeros(3))
    with pytest.raises(TraceError, match=r"an \.npz but not a routing trace"):
        RoutingTrace.load(path)
    np.savez(path, format="wisp-routing-trace", version=7)
    with pytest.raises(TraceError, match=r"version 7 .* up to 1; upgrade"):
        RoutingTrace.load(path)
    np.savez(path, format="wisp-routing-trace", version=1, num_experts=4)
    with pytest.raises(TraceError, match=r"lacks a field.*bits"):
        RoutingTrace.load(path)
    with pytest.raises(FileNotFoundError):
        RoutingTrace.load(folder / "absent.npz")
