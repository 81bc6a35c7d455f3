"""A server's core is recorded by one client at a time, if it was started so, and answers in plain values."""

import pytest
from fake_core import Core, is_untouched, make_request, paging_of

from wisp.errors import UnsupportedError
from wisp.recording import Recording

pytest.importorskip("vllm")

from wisp.engines.vllm.recording import recording_service, worker_recorder
from wisp.engines.vllm.recording.engine_recorder import RecordingLimits


@pytest.fixture(autouse=True)
def _paging(monkeypatch):
    monkeypatch.setattr(worker_recorder, "paging_of", paging_of)


def ask(core, *words):
    return recording_service.recording(core, *words)


def test_a_server_is_recorded_by_one_at_a_time(monkeypatch):
    core = Core(layers=1)
    core.scheduler.requests = {"a": make_request(10**6)}
    ticket = ask(core, "start")["ticket"]
    for _ in range(2):
        core.step([[(1,)]], a=4)
    assert "recorded already" in ask(core, "start")["error"]
    assert "is over" in ask(core, "take", "other")["error"]
    answer = ask(core, "take", ticket)
    assert Recording.from_bytes(answer["piece"], "core").routing.steps == 1
    assert answer["seconds"] > 0
    assert answer["ended"] is None
    assert Recording.from_bytes(ask(core, "finish", ticket)["piece"], "core").routing.tokens.tolist() == [4]
    assert "is over" in ask(core, "take", ticket)["error"]
    assert is_untouched(core)
    monkeypatch.setattr(recording_service, "LIMITS", RecordingLimits(10**9, 0.0))
    left = ask(core, "start")["ticket"]
    again = ask(core, "start")["ticket"]  # the first was not taken for longer than it may
    assert "is over" in ask(core, "take", left)["error"]
    core.step([[(1,)]], a=4)
    assert "not taken for 0 s" in ask(core, "take", again)["ended"]
    assert ask(core, "finish", again)["piece"] is None


def test_only_a_server_that_allows_it_is_recorded():
    core = Core(settings={"expert_slots": 4})
    assert "start it with `wisp serve MODEL --recordable`" in ask(core, "start")["error"]
    assert is_untouched(core)


def test_an_engine_that_cannot_be_recorded_is_refused_and_left_alone(monkeypatch):
    core = Core(ranks=2)

    def refuse(worker):
        raise UnsupportedError("this engine pages nothing")

    monkeypatch.setattr(worker_recorder, "paging_of", refuse)
    assert ask(core, "start") == {"error": "this engine pages nothing"}
    assert is_untouched(core)
