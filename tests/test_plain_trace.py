"""Traces of other programs: CSV and JSON lines say the same, and a wrong line is named."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import TraceError
from wisp.plain_trace import read_plain_trace
from wisp.trace import RoutingTrace

EXPERTS = 12
CELL = st.sets(st.integers(0, EXPERTS - 1), min_size=1, max_size=5).map(sorted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plain")


@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=12), st.randoms())
def test_both_forms_give_the_trace_in_any_order_of_lines(folder, steps, random):
    lines = [(step, layer, experts) for step, pair in enumerate(steps) for layer, experts in enumerate(pair)]
    random.shuffle(lines)
    table, objects = folder / "a.csv", folder / "a.jsonl"
    table.write_text("step,layer,experts\n" + "".join(f"{s},{la},{' '.join(map(str, e))}\n" for s, la, e in lines))
    objects.write_text("\n".join(json.dumps({"step": s, "layer": la, "experts": e}) for s, la, e in lines))
    expected = RoutingTrace.from_steps(EXPERTS, [[pair[layer] for pair in steps] for layer in (0, 1)])
    assert read_plain_trace(table, EXPERTS) == expected
    assert read_plain_trace(objects, EXPERTS) == expected


def test_lines_are_united_gaps_closed_and_further_columns_left_alone(tmp_path):
    (tmp_path / "a.csv").write_text("layer, step,token, experts\n5,100,a,3\n5,100,b,1;3\n\n9,100,c,2\n5,7,d,0\n")
    trace = read_plain_trace(tmp_path / "a.csv")
    assert (trace.num_experts, trace.layers, trace.steps) == (4, 2, 2)
    assert trace.layer(0) == [(0,), (1, 3)]
    assert trace.layer(1) == [(), (2,)]
    assert trace.tokens is None
    assert np.array_equal(trace.widths(), [[1, 2], [0, 1]])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("step,layer,experts\n", "is empty"),
        ("step,layer,experts\n0,0,\n", "is empty"),
        ("step,expert\n0,1\n", r"header of step,layer,experts: layer is missing"),
        ("0,0,1 2\n0,1,2\n", "step is missing"),
        ("step,layer,experts\n0,0,1\n1,0,x\n", "line 3: .*'x'"),
        ("step,layer,experts\n0,0\n0,zero,1\n", "line 3: .*'zero'"),
        ("step,layer,experts\n0,0,1 8\n", "line 2: there is no expert 8: a layer has 0 to 7"),
        ("step,layer,experts\n0,0,-1\n", "line 2: there is no expert -1"),
        ('{"step": 0, "layer": 0, "experts": [1]}\n{"step": 1, "la', "line 2 is not JSON .*cut short"),
        ('{"step": 0, "layer": 0, "experts": 1}', "line 1: expected an object whose experts are a list"),
        ('{"step": 0, "layer": 0, "experts": [1.5]}', "line 1: 1.5 is not a whole number"),
        ('{"step": 0, "experts": [1]}', "line 1: 'layer' is missing"),
        ('{"step": true, "layer": 0, "experts": [1]}', "line 1: True is not a whole number"),
    ],
)
def test_a_line_that_is_none_of_a_trace_is_named(tmp_path, text, told):
    (tmp_path / "a").write_text(text)
    with pytest.raises(TraceError, match=told):
        read_plain_trace(tmp_path / "a", 8)


@pytest.mark.parametrize("expert", [4096, 99_999_999_999])
def test_an_id_beyond_all_models_is_named_though_no_count_is_given(tmp_path, expert):
    (tmp_path / "a.csv").write_text(f"step,layer,experts\n0,0,7 {expert}\n")
    with pytest.raises(TraceError, match=f"line 2: there is no expert {expert}: a layer has 0 to 4095 at most"):
        read_plain_trace(tmp_path / "a.csv")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"\x93NUMPY\xff\xfe")
    with pytest.raises(TraceError, match="is not text"):
        read_plain_trace(tmp_path / "a")
    with pytest.raises(TraceError, match="cannot be read"):
        read_plain_trace(tmp_path / "none")
