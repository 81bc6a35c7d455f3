"""A recorder writes down what an engine's scheduler and pagers did, step by step, and leaves both as they were."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from fake_core import Core, is_untouched, make_blocks, make_hash, make_request, paging_left_alone, paging_of
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import UnsupportedError, WispError
from wisp.kv_trace import KvEvent
from wisp.recording import Recording

pytest.importorskip("vllm")

from wisp.engines.vllm.recording import worker_recorder
from wisp.engines.vllm.recording.engine_recorder import EngineRecorder, RecordingLimits
from wisp.engines.vllm.recording.scheduler_recorder import SchedulerRecorder
from wisp.engines.vllm.taps.scheduler_tap import SchedulerTap

INSERT, HIT, CAPACITY_MISS, DUPLICATE = KvEvent.INSERT, KvEvent.HIT, KvEvent.CAPACITY_MISS, KvEvent.DUPLICATE


@pytest.fixture(autouse=True)
def _paging(monkeypatch):
    monkeypatch.setattr(worker_recorder, "paging_of", paging_of)


def as_lists(recording):
    return [recording.routing.layer(layer) for layer in range(recording.routing.layers)]


def test_groups_and_waves_of_a_step_are_united_and_phases_told_apart():
    core = Core(layers=1)
    core.scheduler.requests = {"a": make_request(5), "b": make_request(1)}
    recorder = EngineRecorder(core)
    core.step([[(0, 1), (4,), (1, 7)]], a=5)
    core.step(None)  # nothing to run
    core.scheduler.requests["a"].num_tokens += 1
    core.scheduler.requests["a"].num_output_tokens += 1
    core.step([[(2, 3)]], a=1, b=1)  # b's whole prompt is one token
    recording = recorder.take(last=True)
    assert as_lists(recording) == [[(0, 1, 4, 7), (2, 3)]]
    assert recording.routing.tokens.tolist() == [5, 2]
    assert recording.prefill_tokens.tolist() == [5, 1]
    assert recording.requests.tolist() == [1, 2]
    assert recording.expert_bytes == 100


def test_a_token_that_is_scheduled_before_the_last_one_is_known_is_decoded():
    """Asynchronous scheduling counts the tokens that running steps will bring as placeholders."""
    core = Core(layers=1)
    request = make_request(5)
    core.scheduler.requests = {"a": request}
    recorder = EngineRecorder(core)

    def step(count, *, brings):
        request.num_output_placeholders += brings  # as vLLM does at the end of `schedule`
        core.step([[(0,)]], a=count)

    step(4, brings=0)
    step(1, brings=1)  # the last token of the prompt
    step(1, brings=1)  # no output is known yet
    request.num_output_tokens, request.num_tokens, request.num_output_placeholders = 1, 6, 1
    step(1, brings=1)
    assert recorder.take(last=True).prefill_tokens.tolist() == [4, 1, 0, 0]


@pytest.mark.parametrize("is_async", [False, True])
def test_drafted_tokens_are_decoded(is_async):
    core = Core(layers=1)
    request = make_request(5)
    core.scheduler.requests = {"a": request}
    recorder = EngineRecorder(core)

    def step(count, *, drafts):
        request.num_output_placeholders += is_async * (1 + drafts)
        core.step([[(0,)]], a=count, drafts=drafts)

    step(5, drafts=0)
    if not is_async:
        request.num_output_tokens, request.num_tokens = 1, 6
    step(3, drafts=2)
    assert recorder.take(last=True).prefill_tokens.tolist() == [5, 0]


@given(st.lists(st.sampled_from(["step", "take"]), max_size=12), st.booleans(), st.integers(1, 2), st.integers(1, 2))
def test_pieces_are_the_whole_however_they_are_taken(actions, is_behind, stages, ranks):
    core = Core(stages=stages, ranks=ranks, is_behind=is_behind)
    core.scheduler.requests = {"a": make_request(10**6)}
    pool = core.scheduler.kv_cache_manager.block_pool
    recorder = EngineRecorder(core)
    needed, pieces = [], []
    for number, action in enumerate(actions):
        if action == "take":
            pieces.append(recorder.take(last=False))
            continue
        needed.append([[(number % 8, 3)], [(number % 5,)]])
        pool.cache_full_blocks([number], make_blocks(1), 0, 1, 16, 0)
        core.step(needed[-1], a=number + 1)
    pool.cache_full_blocks([99], make_blocks(1), 0, 1, 16, 0)  # after the last step: it belongs to that
    pieces = [piece for piece in [*pieces, recorder.take(last=True)] if piece is not None]
    assert bool(pieces) == bool(needed)
    if not pieces:
        return
    whole = Recording.join(pieces)
    one_stage = [[tuple(sorted(set(step[layer][0]))) for step in needed] for layer in range(2)]
    assert as_lists(whole) == one_stage * stages
    assert whole.expert_bytes == 100 * ranks
    assert whole.routing.tokens.tolist() == [n + 1 for n, action in enumerate(actions) if action == "step"]
    assert whole.kv.steps.tolist() == [*range(len(needed)), len(needed) - 1]


def test_kv_references_are_told_apart():
    core = Core(layers=1)
    pool = core.scheduler.kv_cache_manager.block_pool
    pool.blocks = [SimpleNamespace(block_hash=make_hash(13)), *make_blocks(1)]  # there from the start, evicted later
    core.scheduler.requests = {"a": make_request(9)}
    recorder = EngineRecorder(core)
    held = make_blocks(3)
    pool.cache_full_blocks([11, 12], held, 0, 2, 16, 0)
    core.step([[(0,)]], a=9)
    pool.touch([*held[:2], held[2]])  # the last has no hash yet
    pool.cache_full_blocks([11], make_blocks(1), 0, 1, block_size=16, kv_cache_group_id=0)
    del pool.cached[make_hash(12)]  # evicted
    pool.cache_full_blocks(
        [11, 12, 13], make_blocks(3), num_cached_blocks=1, num_full_blocks=3, block_size=16, kv_cache_group_id=0
    )
    core.scheduler._preempt_request("a", 0.0)
    core.step([[(0,)]], a=1)
    kv = recorder.take(last=True).kv
    assert kv.blocks.tolist() == [12, 11, 12, 11, 11, 13, 12]
    assert kv.events.tolist() == [INSERT, INSERT, HIT, HIT, DUPLICATE, CAPACITY_MISS, CAPACITY_MISS]
    assert kv.steps.tolist() == [0, 0, 1, 1, 1, 1, 1]
    assert kv.preemptions.tolist() == [1]
    assert (kv.block_tokens, kv.pool_blocks) == (16, 9)


def test_what_attaches_detaches():
    core = Core(ranks=2)
    recorder = EngineRecorder(core)
    assert not is_untouched(core)
    recorder.stop()
    assert is_untouched(core)


def test_listeners_come_and_go_by_themselves():
    core = Core()
    core.scheduler.requests = {"a": make_request(9)}
    first, second = SchedulerRecorder(core.scheduler), SchedulerRecorder(core.scheduler)
    core.scheduler.schedule(a=1)
    first.stop()
    core.scheduler.schedule(a=1)
    assert (first.steps, second.steps) == (1, 2)
    SchedulerTap.leave(core.scheduler, first)  # it has left already
    second.stop()
    assert is_untouched(core)


def test_a_step_that_ran_otherwise_than_it_was_scheduled_is_an_error():
    core = Core(layers=1)
    core.scheduler.requests = {"a": make_request(9)}
    recorder = EngineRecorder(core)
    core.scheduler.schedule(a=3)
    core.workers[0].needs.append([[(1,)]])
    core.workers[0].execute_model(SimpleNamespace(total_num_scheduled_tokens=4))
    with pytest.raises(WispError, match="a step of 3 tokens was scheduled but one of 4 has run"):
        recorder.take(last=True)
    recorder = EngineRecorder(core)
    core.scheduler.schedule(a=3)
    with pytest.raises(WispError, match="1 steps were scheduled but 0 have run"):
        recorder.take(last=True)


class Device:
    """A device whose ring has one step less than the worker ran."""

    num_experts = 8

    def ran(self):
        pass

    def take(self, *, wait):
        return np.zeros((1, 1, 1), dtype=np.uint8)

    def stop(self):
        pass


def test_a_device_that_counts_other_steps_is_an_error():
    core = Core(layers=1)
    recorder = worker_recorder.WorkerRecorder(core.workers[0], Device())
    for _ in range(2):
        core.workers[0].needs.append([[]])
        core.workers[0].execute_model(SimpleNamespace(total_num_scheduled_tokens=4))
    with pytest.raises(WispError, match="the layers have counted 1 steps where the worker ran 2"):
        recorder.take(wait=True)
    assert recorder.take(wait=False).routing.tokens.tolist() == [4]
    assert recorder.take(wait=False).routing.tokens.tolist() == [4]
    with pytest.raises(WispError, match="the layers have counted 1 steps where the worker ran 0"):
        recorder.take(wait=False)


@pytest.mark.parametrize(
    ("limits", "told"), [((10**9, 0.0), "not taken for 0 s"), ((200, 60.0), r"it holds \d+B, of 200B")]
)
def test_a_recording_that_nobody_takes_ends_by_itself_and_keeps_what_it_has(limits, told):
    core = Core(is_behind=True)
    core.scheduler.requests = {"a": make_request(10**6)}
    recorder = EngineRecorder(core, RecordingLimits(*limits))
    for number in range(20):
        core.step([[(number % 8,)], [(1,)]], a=number + 1)
    assert re.search(told, recorder.ended)
    assert is_untouched(core)
    recording = recorder.take(last=True)
    kept = recording.routing.steps if recording else 0
    assert kept == recorder.steps - 1 < 19
    if recording:
        assert as_lists(recording)[0] == [(number % 8,) for number in range(kept)]
    assert recorder.take(last=True) is None


def test_an_engine_whose_kernel_is_left_alone_says_how_to_follow_its_routing(monkeypatch):
    monkeypatch.setattr(worker_recorder, "paging_of", paging_left_alone)
    with pytest.raises(UnsupportedError, match="set recordable to true"):
        EngineRecorder(Core(layers=1))
