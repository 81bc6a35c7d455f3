"""What is recorded is what the engine did: the faults predicted from a trace are the engine's own."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from workload import EAGER

from wisp.conversations import Conversation, Script
from wisp.errors import UnsupportedError, WispError
from wisp.kv_trace import KvEvent
from wisp.recording import Recording
from wisp.simulate import simulate
from wisp.workingset import MissCurve, miss_curves

MODEL = Path(__file__).parents[3] / "demo" / "model"
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
    recorded_run = pytest.importorskip("wisp.engines.vllm.recorded_run")
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


def make_engine(pagers):
    """As much of an engine as a recorder looks at before it records."""
    pytest.importorskip("vllm")
    return SimpleNamespace(
        engine_core=SimpleNamespace(engine_core=SimpleNamespace(scheduler=None)), apply_model=lambda _: [pagers]
    )


def test_an_engine_that_cannot_be_recorded_is_refused():
    pytest.importorskip("vllm")
    from wisp.engines.vllm.recording import EngineRecorder

    class DecidedOnDevice:
        @property
        def pager(self):
            raise KeyError(0)

    with pytest.raises(UnsupportedError, match="set decide to host and add --enforce-eager"):
        EngineRecorder.attach(make_engine([DecidedOnDevice()]))
    with pytest.raises(UnsupportedError, match="pages nothing"):
        EngineRecorder.attach(make_engine([]))
    with pytest.raises(UnsupportedError, match="VLLM_ENABLE_V1_MULTIPROCESSING=0"):
        EngineRecorder.attach(SimpleNamespace(engine_core=SimpleNamespace()))


def make_hash(number):
    return number.to_bytes(32, "little") + bytes(4)


class Pool:
    """vLLM's block pool, as far as it is wrapped."""

    num_gpu_blocks = 9

    def __init__(self):
        self.cached = {}
        self.cached_block_hash_to_block = SimpleNamespace(get_one_block=self.cached.get)

    def touch(self, blocks):
        pass

    def cache_full_blocks(self, request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id):
        for number, block in list(enumerate(blocks))[num_cached_blocks:num_full_blocks]:
            block.block_hash = make_hash(request[number])
            self.cached.setdefault(block.block_hash, block)


class Scheduler:
    """vLLM's scheduler, as far as it is wrapped: `schedule` returns what it is given."""

    block_size = 16

    def __init__(self):
        self.kv_cache_manager = SimpleNamespace(block_pool=Pool())
        self.requests = {}

    def schedule(self, **tokens):
        for name, count in tokens.items():
            self.requests[name].num_computed_tokens += count
        return SimpleNamespace(num_scheduled_tokens=tokens)

    def _preempt_request(self, request, timestamp):
        pass


@pytest.fixture
def recorder():
    """A recorder on a layer of its own, its scheduler and its pager."""
    pytest.importorskip("vllm")
    from wisp.engines.vllm.recording import EngineRecorder

    pager = SimpleNamespace(
        observe=None, resident=SimpleNamespace(num_experts=8), store=SimpleNamespace(expert_bytes=100)
    )
    scheduler = Scheduler()
    return EngineRecorder([pager], scheduler), scheduler, pager


def plan(*waves):
    return SimpleNamespace(waves=[SimpleNamespace(experts=experts) for experts in waves])


def make_request(prompt):
    return SimpleNamespace(num_tokens=prompt, num_computed_tokens=0, num_output_tokens=0)


def test_groups_and_waves_of_a_step_are_united_and_phases_told_apart(recorder):
    recorder, scheduler, pager = recorder
    scheduler.requests = {"a": make_request(5), "b": make_request(1)}
    scheduler.schedule(a=5)
    pager.observe(plan((0, 1), (4,)))
    pager.observe(plan((1, 7)))
    scheduler.schedule()  # nothing to run
    scheduler.requests["a"].num_tokens += 1
    scheduler.requests["a"].num_output_tokens += 1
    scheduler.schedule(a=1, b=1)  # b's whole prompt is one token
    pager.observe(plan((2, 3)))
    recording = recorder.recording()
    assert recording.routing.layer(0) == [(0, 1, 4, 7), (2, 3)]
    assert recording.routing.tokens.tolist() == [5, 2]
    assert recording.prefill_tokens.tolist() == [5, 1]
    assert recording.requests.tolist() == [1, 2]
    assert recording.expert_bytes == 100


def test_kv_references_are_told_apart(recorder):
    recorder, scheduler, _ = recorder
    pool = scheduler.kv_cache_manager.block_pool
    scheduler.requests = {"a": make_request(9)}

    def blocks(count):
        return [SimpleNamespace(block_hash=None) for _ in range(count)]

    held = blocks(3)
    pool.cache_full_blocks([11, 12], held, 0, 2, 16, 0)
    scheduler.schedule(a=9)
    pool.touch([*held[:2], held[2]])  # the last has no hash yet
    pool.cache_full_blocks([11], blocks(1), 0, 1, block_size=16, kv_cache_group_id=0)
    del pool.cached[make_hash(12)]  # evicted
    pool.cache_full_blocks(
        [11, 12], blocks(2), num_cached_blocks=1, num_full_blocks=2, block_size=16, kv_cache_group_id=0
    )
    scheduler._preempt_request("a", 0.0)
    kv = recorder.recording().kv
    insert, hit = KvEvent.INSERT, KvEvent.HIT
    assert kv.blocks.tolist() == [12, 11, 12, 11, 11, 12]
    assert kv.events.tolist() == [insert, insert, hit, hit, KvEvent.DUPLICATE, KvEvent.CAPACITY_MISS]
    assert kv.steps.tolist() == [0, 0, 1, 1, 1, 1]
    assert kv.preemptions.tolist() == [1]


def test_what_attaches_detaches(recorder):
    recorder, scheduler, pager = recorder
    recorder.detach()
    assert pager.observe is None
    assert vars(scheduler).keys() == {"kv_cache_manager", "requests"}
    assert vars(scheduler.kv_cache_manager.block_pool).keys() == {"cached", "cached_block_hash_to_block"}
    assert recorder.recording().routing.steps == 0


def test_an_engine_that_fails_is_told(tmp_path):
    recorded_run = pytest.importorskip("wisp.engines.vllm.recorded_run")
    script = Script((Conversation("", ("x",)),))
    request = recorded_run.RunRequest(str(tmp_path), {"expert_slots": 4}, script, str(tmp_path / "t"), ("--nope",))
    with pytest.raises(WispError, match=r"ended with code \d+ before it had answered; its last words:[^$]*--nope"):
        recorded_run.record_run(request)
