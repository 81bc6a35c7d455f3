"""`wisp record URL` keeps all that has arrived, and says why there is no more. The server's core is a stand-in."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from fake_core import Core, make_request, paging_of

from wisp.recording import Recording

pytest.importorskip("vllm")

import uvicorn
from fastapi import FastAPI
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

from wisp.cli import served_recording
from wisp.engines.vllm.endpoint import WispEndpoint
from wisp.engines.vllm.recording import recording_service, worker_recorder
from wisp.engines.vllm.recording.engine_recorder import RecordingLimits
from wisp.engines.vllm.settings import WispSettings


class Served:
    """A server whose core runs a step every few milliseconds while it is asked nothing."""

    def __init__(self, core, *, with_routes=True, api_key=None):
        self.core, self._lock, self.is_running = core, threading.Lock(), True
        core.scheduler.requests = {"a": make_request(10**9)}
        self.steps, self.takes_left = 0, 10**9
        app = FastAPI()
        if with_routes:
            WispEndpoint(WispSettings(4, recordable=True)).attach_router(app)
        if api_key is not None:
            app.add_middleware(AuthenticationMiddleware, tokens=[api_key])
        app.state.engine_client = SimpleNamespace(engine_core=self)
        self._server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
        self._threads = [threading.Thread(target=self._server.run), threading.Thread(target=self._work)]
        for thread in self._threads:
            thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    async def call_utility_async(self, method, *words):
        assert method == recording_service.METHOD
        self.takes_left -= words[0] == "take"
        if self.takes_left < 0:
            raise RuntimeError("the engine has died")
        with self._lock:
            return recording_service.recording(self.core, *words)

    def _work(self):
        while self.is_running:
            with self._lock:
                self.core.step([[(self.steps % 8,)]], a=1 + self.steps % 3)
                self.steps += 1
            time.sleep(0.002)

    def stop(self):
        self.is_running = False
        self._server.should_exit = True
        for thread in self._threads:
            thread.join()


@pytest.fixture
def serve(monkeypatch):
    """`serve(...)` starts a server; pieces are taken more often than from a real one."""
    monkeypatch.setattr(served_recording, "TAKE_SECONDS", 0.1)
    monkeypatch.setattr(worker_recorder, "paging_of", paging_of)
    started = []

    def start(core=None, **options):
        started.append(Served(core or Core(layers=1), **options))
        return started[-1]

    yield start
    for served in started:
        served.stop()


def check_is_consecutive(recording):
    """Experts and tokens of the stand-in's steps follow from one another, so that a missing one shows."""
    (experts,) = zip(*recording.routing.layer(0), strict=True)
    first = experts[0]
    assert list(experts) == [(first + number) % 8 for number in range(len(experts))]
    tokens = recording.routing.tokens
    assert ((tokens[1:] - tokens[:-1]) % 3 == 1).all()


def test_a_server_is_recorded_for_a_number_of_steps_or_seconds(wisp, serve, tmp_path):
    served, trace = serve(), tmp_path / "t.npz"
    ended = wisp("record", served.url, "-o", trace, "--steps", 100)
    assert ended.code == 0, ended.err
    assert "100 steps of 1 layers of 8 experts" in ended.out
    recording = Recording.load(trace)
    assert recording.routing.steps == 100
    check_is_consecutive(recording)
    ended = wisp("record", f"{served.url}/v1/", "-o", trace, "--seconds", 0.5)
    assert ended.code == 0, ended.err
    assert Recording.load(trace).routing.steps > 20
    check_is_consecutive(Recording.load(trace))
    assert not hasattr(served.core, "_wisp_recording")


def test_ctrl_c_ends_a_recording_and_keeps_it(wisp, serve, tmp_path):
    served, trace = serve(), tmp_path / "t.npz"
    before = signal.getsignal(signal.SIGINT)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    ended = wisp("record", served.url, "-o", trace)
    assert ended.code == 0, ended.err
    check_is_consecutive(Recording.load(trace))
    assert Recording.load(trace).routing.steps > 20
    assert signal.getsignal(signal.SIGINT) is before


def test_what_has_arrived_of_a_recording_that_fails_is_kept(wisp, serve, tmp_path, monkeypatch):
    monkeypatch.setattr(recording_service, "LIMITS", RecordingLimits(held_bytes=4000, idle_seconds=60))
    served, trace = serve(), tmp_path / "t.npz"
    monkeypatch.setattr(served_recording, "TAKE_SECONDS", 2.0)  # too seldom for so little memory
    ended = wisp("record", served.url, "-o", trace, "--seconds", 60)
    assert ended.code == 2
    assert "the server has ended the recording: it holds" in ended.err
    kept = Recording.load(trace)
    assert f"holds the {kept.routing.steps} steps until then" in ended.err
    assert kept.routing.steps > 50
    check_is_consecutive(kept)

    monkeypatch.setattr(recording_service, "LIMITS", RecordingLimits(10**9, 60))
    monkeypatch.setattr(served_recording, "TAKE_SECONDS", 0.1)
    served.takes_left = 3
    ended = wisp("record", served.url, "-o", trace)
    assert ended.code == 2
    assert "/take answers 500; look at the server's log" in ended.err
    assert f"holds the {Recording.load(trace).routing.steps} steps" in ended.err
    check_is_consecutive(Recording.load(trace))


def test_a_server_without_steps_leaves_no_file(wisp, serve, tmp_path):
    served = serve()
    served.is_running = False
    ended = wisp("record", served.url, "-o", tmp_path / "t.npz", "--seconds", 0.2)
    assert ended.code == 2
    assert "send it requests in the meantime" in ended.err
    assert not (tmp_path / "t.npz").exists()


def test_a_server_with_a_key_asks_for_it(wisp, serve, tmp_path):
    served, words = serve(api_key="secret"), ("-o", tmp_path / "t.npz", "--steps", 3)
    ended = wisp("record", served.url, *words)
    assert ended.code == 2
    assert "answers 401; add its key with --api-key KEY" in ended.err
    assert wisp("record", served.url, *words, "--api-key", "secret").code == 0


def test_a_server_that_cannot_be_recorded_says_why(wisp, serve, tmp_path):
    words = ("-o", tmp_path / "t.npz", "--steps", 3)
    for served in (serve(with_routes=False), serve(Core(layers=1, settings={"expert_slots": 4}))):
        ended = wisp("record", served.url, *words)
        assert ended.code == 2
        assert "start it with `wisp serve MODEL --recordable`" in ended.err
    served.stop()
    for url, told in ((served.url, "no answer from"), ("http://host:port", "is no URL")):
        ended = wisp("record", url, *words)
        assert ended.code == 2
        assert told in ended.err
