"""Servers that answer otherwise than one of this version does are told of in one paragraph, with what to do."""

import json

import numpy as np
import pytest
from small_server import Answer, serving

from wisp import __version__
from wisp.engines.vllm.counters.collector import COUNTERS, GAUGES, INFO
from wisp.engines.vllm.protocol import CURVES, HEADER, RECORDINGS
from wisp.kv_trace import KvTrace
from wisp.recording import Recording
from wisp.trace import RoutingTrace

METRICS = "".join(
    [
        f'# TYPE {metric.name}_total counter\n{metric.name}_total{{layer="model.layers.0.mlp",rank="0"}} 3.0\n'
        for metric in COUNTERS.values()
    ]
    + [f'# TYPE {metric.name} gauge\n{metric.name}{{rank="0"}} 2.0\n' for metric in GAUGES.values()]
    + [f'# TYPE {INFO.name} gauge\n{INFO.name}{{rank="0",kernel="K",device="cpu"}} 1.0\n']
)
KNOWN = {
    "half_life_steps": 1024.0,
    "seconds": 0.5,
    "experts": {"layers": 6, "expert_slots": 2, "lost_steps": 0, "misses_a_step": [12.0, 9.0, 6.0, 3.0, 0.5]},
    "kv": {"block_tokens": 16, "pool_blocks": 9, "references_a_step": 2.0, "misses_a_step": {"9": 0.5, "18": 0.1}},
}


def without(*names):
    """The known answer with one of its parts taken out."""
    answer = json.loads(json.dumps(KNOWN))
    part = answer
    for name in names[:-1]:
        part = part[name]
    del part[names[-1]]
    return answer


def having(value, *names):
    """The known answer with another value in one place."""
    answer = json.loads(json.dumps(KNOWN))
    part = answer
    for name in names[:-1]:
        part = part[name]
    part[names[-1]] = value
    return answer


def refusal(ended):
    assert ended.code == 2
    assert ended.err.startswith("wisp: ")
    assert ended.err.count("\n") == 1, "one paragraph"
    return ended.err


def answering(curves):
    return serving({"/metrics": Answer(METRICS), CURVES: Answer(json.dumps(curves))})


def test_an_answer_of_this_version_is_read(wisp):
    with answering(KNOWN) as url:
        ended, as_json = wisp("stats", url, "--curves"), wisp("stats", url, "--curves", "--json")
    assert ended.code == 0, ended.err
    assert "6 layers together" in ended.out
    assert "count in no row" not in ended.out
    assert json.loads(as_json.out)["curves"] == KNOWN


def test_steps_that_were_lost_are_told_of(wisp):
    with answering(having(4321, "experts", "lost_steps")) as url:
        text = " ".join(wisp("stats", url, "--curves").out.split())
    assert "4,321 steps count in no row: the device had overwritten them before they were read" in text


@pytest.mark.parametrize(
    "answer",
    [
        {},
        without("kv"),
        without("half_life_steps"),
        without("experts", "lost_steps"),
        without("kv", "misses_a_step"),
        having([], "experts"),
        having(None, "experts", "layers"),
        having("many", "experts", "misses_a_step"),
        having([1.0, 0.5], "experts", "misses_a_step"),  # fewer than there are slots
        having(0, "experts", "expert_slots"),
        having([1, 2], "kv", "misses_a_step"),
        having(float("inf"), "kv", "pool_blocks"),
    ],
    ids=json.dumps,
)
def test_curves_of_another_form_are_told_with_the_remedy(wisp, answer):
    with answering(answer) as url:
        told = refusal(wisp("stats", url, "--curves"))
    assert f"{CURVES} answers in another form than wisp" in told
    assert "run the same version of wisp here as in the server" in told


@pytest.mark.parametrize("body", ["[]", "", "<html>", b"\xff\xfe\x00", "3"])
def test_curves_that_are_no_object_are_told_with_the_remedy(wisp, body):
    with serving({"/metrics": Answer(METRICS), CURVES: Answer(body)}) as url:
        told = refusal(wisp("stats", url, "--curves"))
    assert "does not answer as a server of wisp does; name the root of one" in told


@pytest.mark.parametrize(
    "left_out",
    [
        'kernel="K",',
        'wisp_expert_slots{rank="0"} 2.0\n',
        '# TYPE wisp_expert_slots gauge\nwisp_expert_slots{rank="0"} 2.0\n',
        '# TYPE wisp_waves_total counter\nwisp_waves_total{layer="model.layers.0.mlp",rank="0"} 3.0\n',
        'layer="model.layers.0.mlp",',
    ],
    ids=["label of a fact", "value of a gauge", "gauge", "counter", "label of a counter"],
)
def test_counters_of_another_form_are_told_with_the_remedy(wisp, left_out):
    assert left_out in METRICS
    with serving({"/metrics": Answer(METRICS.replace(left_out, ""))}) as url:
        told = refusal(wisp("stats", url))
    assert "/metrics has wisp_* metrics of another form" in told
    assert "run the same version of wisp here as in the server" in told


def piece(**parts):
    """Three steps, with all that a server tells of them unless a part is given as None."""
    counts = np.ones(3, dtype=np.int64)
    routing = RoutingTrace.from_membership(np.ones((1, 3, 4), dtype=np.bool_), parts.pop("tokens", counts))
    nothing = np.zeros(0, dtype=np.int64)
    kv = KvTrace(nothing.astype(np.uint64), nothing, nothing.astype(np.uint8), nothing, 16, 9)
    whole = {"prefill_tokens": counts, "requests": counts, "expert_bytes": 100, "kv": kv}
    return Recording(routing, **(whole | parts)).to_bytes()


SAID = json.dumps({"seconds": 0.1, "ended": None})


def recorded_by(start, **taken):
    """A server whose recording has the ticket `t`."""
    return serving({RECORDINGS: Answer(start), f"{RECORDINGS}/t/take": Answer(**taken)})


@pytest.mark.parametrize("start", ["{}", '{"id": "t"}', '{"ticket": null}', '{"ticket": ["t"]}'])
def test_a_recording_without_a_ticket_is_told_with_the_remedy(wisp, tmp_path, start):
    with recorded_by(start) as url:
        told = refusal(wisp("record", url, "-o", tmp_path / "t.npz", "--steps", 3))
    assert f"{RECORDINGS} answers in another form than wisp" in told
    assert not (tmp_path / "t.npz").exists()


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("{}", "answers in another form than wisp"),
        ("not json", "answers in another form than wisp"),
        ("[]", "answers in another form than wisp"),
        ('{"seconds": 0.1}', "answers in another form than wisp"),
        ('{"seconds": "long", "ended": null}', "answers in another form than wisp"),
        ('{"seconds": null, "ended": null}', "answers in another form than wisp"),
        (None, f"answers without the header {HEADER}; is a proxy in between?"),
    ],
)
def test_a_piece_with_another_header_is_told_with_the_remedy(wisp, tmp_path, monkeypatch, header, told):
    monkeypatch.setattr("wisp.cli.served_recording.TAKE_SECONDS", 0.01)
    headers = {} if header is None else {HEADER: header}
    with recorded_by('{"ticket": "t"}', body=piece(), headers=headers) as url:
        assert told in refusal(wisp("record", url, "-o", tmp_path / "t.npz", "--steps", 3))


@pytest.mark.parametrize("body", [b"<html>", piece()[:100], b"PK"])
def test_a_piece_that_is_none_is_told_with_the_remedy(wisp, tmp_path, monkeypatch, body):
    monkeypatch.setattr("wisp.cli.served_recording.TAKE_SECONDS", 0.01)
    with recorded_by('{"ticket": "t"}', body=body, headers={HEADER: SAID}) as url:
        told = refusal(wisp("record", url, "-o", tmp_path / "t.npz", "--steps", 3))
    assert "is not a routing trace" in told or "is damaged or cut short" in told


@pytest.mark.parametrize("part", ["tokens", "prefill_tokens", "requests", "expert_bytes", "kv"])
def test_a_piece_that_lacks_a_part_is_told_with_the_remedy(wisp, tmp_path, monkeypatch, part):
    monkeypatch.setattr("wisp.cli.served_recording.TAKE_SECONDS", 0.01)
    with recorded_by('{"ticket": "t"}', body=piece(**{part: None}), headers={HEADER: SAID}) as url:
        told = refusal(wisp("record", url, "-o", tmp_path / "t.npz", "--steps", 3))
    assert f"in another form than wisp {__version__} knows (ValueError: a piece without {part})" in told


def test_a_piece_of_this_version_is_read(wisp, tmp_path, monkeypatch):
    monkeypatch.setattr("wisp.cli.served_recording.TAKE_SECONDS", 0.01)
    answers = {f"{RECORDINGS}/t/{verb}": Answer(piece(), headers={HEADER: SAID}) for verb in ("take", "finish")}
    with serving({RECORDINGS: Answer('{"ticket": "t"}'), **answers}) as url:
        ended = wisp("record", url, "-o", tmp_path / "t.npz", "--steps", 3)
    assert ended.code == 0, ended.err
    assert Recording.load(tmp_path / "t.npz").routing.steps == 3
