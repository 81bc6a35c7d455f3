"""`wisp record` refuses what cannot be recorded before an engine starts, and hands the rest on."""

import json
import sys
import types

import numpy as np
import pytest

from wisp.kv_trace import KvTrace
from wisp.recording import Recording
from wisp.trace import RoutingTrace


@pytest.fixture
def requests(monkeypatch):
    """What the engine's process would be asked; a stand-in answers with a small trace."""
    asked = []
    stand_in = types.ModuleType("wisp.engines.vllm.recording.recorded_run")

    def record_run(request):
        asked.append(request)
        empty = np.zeros(0, dtype=np.int64)
        kv = KvTrace(empty.astype(np.uint64), empty, empty.astype(np.uint8), empty, 16, 40)
        routing = RoutingTrace.from_steps(16, [[[0, 1, 2], [3]]], [5, 1])
        Recording(routing, np.array([5, 0]), np.array([1, 1]), 100, kv).save(request.trace_file)
        return types.SimpleNamespace(seconds=2.0, recorder_seconds=0.01, counters={"references": 4.0, "faults": 3.0})

    stand_in.record_run = record_run
    stand_in.RunRequest = lambda *parts: types.SimpleNamespace(
        **dict(zip(("model", "settings", "script", "trace_file", "engine_flags"), parts, strict=True))
    )
    monkeypatch.setitem(sys.modules, "wisp.engines.vllm.recording.recorded_run", stand_in)
    return asked


def test_a_model_is_recorded_with_all_experts_resident_unless_told(wisp, model, requests, tmp_path):
    pytest.importorskip("vllm")
    ended = wisp("record", model, "-o", tmp_path / "t.npz", "--max-model-len", "512")
    assert ended.code == 0, ended.err
    assert "2 steps of 1 layers of 16 experts" in ended.out
    assert "tokens: 5 of prompts, 1 decoded" in ended.out
    assert "recording took 10ms of 2s, 0.50%" in ended.out
    (request,) = requests
    assert request.settings == {"expert_slots": 16, "policy": "lru", "decide": "auto"}
    assert request.engine_flags == ("--max-model-len", "512")
    assert not request.script.chat
    (tmp_path / "p.txt").write_text("hello\n")
    words = ("--expert-slots", 4, "--prompts", tmp_path / "p.txt", "--max-tokens", 3)
    assert wisp("record", model, "-o", tmp_path / "t.npz", *words).code == 0
    assert requests[1].settings["expert_slots"] == 4
    assert (requests[1].script.conversations[0].turns, requests[1].script.max_tokens) == (("hello",), 3)


def test_the_experts_of_a_downloaded_model_are_counted(wisp, requests, tmp_path, monkeypatch):
    pytest.importorskip("vllm")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--Owner--Some-MoE"
    for place, text in (("refs/main", "1234"), ("snapshots/1234/config.json", '{"num_experts": 16}')):
        (kept / place).parent.mkdir(parents=True)
        (kept / place).write_text(text)
    assert wisp("record", "Owner/Some-MoE", "-o", tmp_path / "t.npz").code == 0
    assert requests[0].settings["expert_slots"] == 16


def test_the_experts_of_a_text_model_inside_another_are_found(wisp, model, requests, tmp_path):
    config = model / "config.json"
    config.write_text(json.dumps({"model_type": "kimi_vl", "text_config": json.loads(config.read_text())}))
    assert wisp("record", model, "-o", tmp_path / "t.npz").code == 0
    assert requests[0].settings["expert_slots"] == 16


def test_a_model_without_experts_is_told(wisp, model, requests, tmp_path):
    (model / "config.json").write_text('{"model_type": "llama"}')
    ended = wisp("record", model, "-o", tmp_path / "t.npz")
    assert ended.code == 2
    assert "has no experts (llama" in ended.err
    assert not requests


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("http://localhost:8000", "-o", "t.npz", "--prompts", "p"), "--prompts is for a MODEL that is run"),
        (("http://localhost:8000", "-o", "t.npz", "--dtype", "half"), "--dtype is for a MODEL that is run"),
        (("some/model", "-o", "t.npz", "--seconds", "3"), "--seconds is for the URL of a server"),
        (("some/model", "-o", "t.npz"), "add --expert-slots N"),
        (("localhost:8000", "-o", "t.npz"), "write http://localhost:8000"),
        (("some/model", "-o", "no/such/t.npz", "--expert-slots", "4"), "name a file"),
        (("some/model", "-o", "t.npz", "--expert-slots", "none"), "a whole number of experts"),
        (("some/model", "-o", "t.npz", "--expert-slots", "4", "--policy", "belady"), "unknown replacement policy"),
        (("some/model", "-o", "t.npz", "--domain", "prose"), "add --prompts FILE"),
        (("some/model", "-o", "t.npz", "--prompts", "none.json"), "cannot be read"),
    ],
)
def test_what_cannot_be_recorded_is_refused(wisp, requests, words, told):
    ended = wisp("record", *words)
    assert ended.code == 2
    assert told in ended.err
    assert not requests
