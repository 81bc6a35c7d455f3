"""What is recorded is what the engine did: the faults predicted from a trace are the engine's own."""

import os
from pathlib import Path

import numpy as np
import pytest
from workload import EAGER

from wisp.conversations import Conversation, Script, read_script
from wisp.errors import WispError
from wisp.kv_trace import KvEvent
from wisp.recording import Recording
from wisp.simulate import simulate
from wisp.workingset import MissCurve, miss_curves

MODEL = Path(__file__).parents[4] / "demo" / "model"
SLOTS, TOP_K, TOKENS = 16, 4, 4
TURNS = ("Write Python code: Send a message to the server", "Continue.")
QUESTION = "Tell a story about Captain Ahab. " * 12
FLAGS = (
    *("--enforce-eager", "--max-num-batched-tokens", f"{TOKENS}", "--max-num-seqs", "2", "--max-model-len", "192"),
    *("--block-size", "32", "--num-gpu-blocks-override", "7"),
)
"""No step is wider than the slots, so none runs in groups of tokens; and the KV pool is too small for what is asked."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The report of an engine, and what was recorded of it."""
    recorded_run = pytest.importorskip("wisp.engines.vllm.recording.recorded_run")
    path = tmp_path_factory.mktemp("recorded") / "trace.npz"
    talks = (Conversation("python", TURNS), Conversation("prose", (QUESTION,)), Conversation("prose", (QUESTION,)))
    request = recorded_run.RunRequest(
        str(MODEL), {"expert_slots": SLOTS, "decide": "host"}, Script(talks, max_tokens=24), str(path), FLAGS
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in EAGER.items():
            patch.setenv(name, value)
        report = recorded_run.record_run(request)
    return report, Recording.load(path)


@pytest.mark.engine
def test_predicted_faults_equal_the_engines(run):
    report, recording = run
    assert recording.routing.widths().max() <= SLOTS
    replay = simulate(recording.routing, SLOTS)
    assert replay.total_references == report.counters["references"]
    assert replay.total_faults == report.counters["faults"] > 0
    assert replay.total_evictions == report.counters["evictions"]
    assert replay.copied_bytes(recording.expert_bytes) == report.counters["bytes_moved"]
    assert MissCurve.total(miss_curves(recording.routing)).misses_at(SLOTS) == report.counters["faults"]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("domain", ["python", "prose", "shell"])
@pytest.mark.parametrize(("slots", "tokens"), [(8, 2), (16, 4)])
def test_they_do_in_every_domain_of_the_demo(tmp_path, domain, slots, tokens):
    recorded_run = pytest.importorskip("wisp.engines.vllm.recording.recorded_run")
    script = read_script(MODEL.parent / "prompts.json", domain=domain)
    flags = ("--enforce-eager", "--max-num-batched-tokens", f"{tokens}", "--max-num-seqs", "1")
    request = recorded_run.RunRequest(
        str(MODEL), {"expert_slots": slots, "decide": "host"}, script, str(tmp_path / "trace.npz"), flags
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in EAGER.items():
            patch.setenv(name, value)
        report = recorded_run.record_run(request)
    replay = simulate(Recording.load(tmp_path / "trace.npz").routing, slots)
    assert replay.total_references == report.counters["references"]
    assert replay.total_faults == report.counters["faults"] > 0
    assert replay.total_evictions == report.counters["evictions"]


@pytest.mark.engine
def test_steps_say_what_they_computed(run):
    _, recording = run
    routing, prefill, requests = recording.routing, recording.prefill_tokens, recording.requests
    assert (routing.layers, routing.num_experts) == (6, 32)
    assert np.all(prefill <= routing.tokens)
    assert routing.tokens.max() <= TOKENS
    assert requests.max() == 2
    alone = recording.phase("decode").tokens == 1
    assert recording.phase("decode").widths()[:, alone].max() == TOP_K
    # each answer's first token comes with the last piece of its prompt, or of its second computation
    answers = 4
    decoded = int((routing.tokens - prefill).sum())
    assert answers <= decoded <= answers * 24


@pytest.mark.engine
def test_kv_references_tell_hits_from_misses(run):
    _, recording = run
    kv = recording.kv
    assert (kv.block_tokens, kv.pool_blocks) == (32, 7)
    assert kv.steps.max() < recording.routing.steps
    assert kv.count(KvEvent.INSERT) == len(np.unique(kv.blocks[kv.events == KvEvent.INSERT]))
    first = dict(zip(kv.blocks[::-1].tolist(), kv.events[::-1].tolist(), strict=True))
    assert set(first.values()) == {KvEvent.INSERT}
    assert kv.count(KvEvent.HIT) > 0


@pytest.mark.engine
def test_recording_costs_under_two_percent(run):
    report, _ = run
    assert 0 < report.recorder_seconds < 0.02 * report.seconds


@pytest.mark.engine
@pytest.mark.slow
def test_tensor_parallel_ranks_in_processes_of_their_own_are_recorded(tmp_path):
    recorded_run = pytest.importorskip("wisp.engines.vllm.recording.recorded_run")
    path = tmp_path / "trace.npz"
    script = Script((Conversation("python", TURNS[:1]),), max_tokens=12)
    request = recorded_run.RunRequest(
        str(MODEL), {"expert_slots": SLOTS}, script, str(path), (*FLAGS, "--tensor-parallel-size", "2")
    )
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("two ranks need two cores")
    binding = {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores[:2]))}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (EAGER | binding).items():
            patch.setenv(name, value)
        report = recorded_run.record_run(request)
    recording = Recording.load(path)
    replay = simulate(recording.routing, SLOTS)
    assert replay.total_references == report.counters["references"]
    assert replay.total_faults == report.counters["faults"] > 0
    assert replay.copied_bytes(recording.expert_bytes) == report.counters["bytes_moved"]


def test_an_engine_that_fails_is_told(tmp_path):
    recorded_run = pytest.importorskip("wisp.engines.vllm.recording.recorded_run")
    script = Script((Conversation("", ("x",)),))
    request = recorded_run.RunRequest(str(tmp_path), {"expert_slots": 4}, script, str(tmp_path / "t"), ("--nope",))
    with pytest.raises(WispError, match=r"ended with code \d+ before it had answered; its last words:[^$]*--nope"):
        recorded_run.record_run(request)
