"""What is metered while serving is what a recording of the same steps would say."""

from types import SimpleNamespace

import numpy as np
import pytest
from fake_core import Core, is_untouched, make_blocks, make_request, paging_left_alone, paging_of

from wisp.workingset import MissCurve
from wisp.workingset.blocks import BlockHistogram
from wisp.workingset.histogram import ExpertHistogram

pytest.importorskip("vllm")

from wisp.engines.vllm.metering import expert_meter, meter_service
from wisp.engines.vllm.recording import worker_recorder
from wisp.engines.vllm.recording.engine_recorder import EngineRecorder


@pytest.fixture(autouse=True)
def _paging(monkeypatch):
    for module in (worker_recorder, expert_meter):
        monkeypatch.setattr(module, "paging_of", paging_of)


def test_meters_say_what_the_recording_of_the_same_steps_says():
    core = Core(layers=2, stages=2)
    core.scheduler.requests = {"a": make_request(10**6)}
    pool = core.scheduler.kv_cache_manager.block_pool
    assert "error" not in meter_service.meters(core)
    recorder = EngineRecorder(core)
    for number in range(150):
        pool.cache_full_blocks([number % 7], make_blocks(1), 0, 1, 16, 0)
        core.step([[(number % 5, 7)], [(number % 3,)]], a=1)
    said = meter_service.meters(core)
    recording = recorder.take(last=True)
    recorder.stop()
    curve = MissCurve.total(_decayed(recording.routing))
    assert said["experts"]["misses_a_step"] == pytest.approx([curve.misses_per_step(slots) for slots in range(9)])
    assert said["experts"]["misses_a_step"][0] == pytest.approx(4 + 2)  # two stages alike
    assert (said["experts"]["layers"], said["experts"]["expert_slots"]) == (4, 4)
    blocks = BlockHistogram()
    for name, step in zip(recording.kv.blocks, recording.kv.steps, strict=True):
        blocks.observe(np.array([name]), int(step))
    own = blocks.curve(150)
    assert said["kv"]["pool_blocks"] == 9
    assert said["kv"]["misses_a_step"] == {
        str(n): pytest.approx(own.misses_per_step(n)) for n in (2, 4, 7, 9, 11, 14, 18)
    }
    assert said["kv"]["misses_a_step"]["2"] > 10 * said["kv"]["misses_a_step"]["7"]
    core._wisp_meters.stop()
    del core._wisp_meters
    assert is_untouched(core)


def _decayed(routing):
    histogram = ExpertHistogram(routing.layers, routing.num_experts)
    for step in range(routing.steps):
        histogram.observe(np.stack([routing.membership(layer)[step] for layer in range(routing.layers)]))
    return histogram.curves()


def test_an_engine_whose_kernel_is_left_alone_says_how_to_follow_its_routing(monkeypatch):
    monkeypatch.setattr(expert_meter, "paging_of", paging_left_alone)
    assert "set recordable to true" in meter_service.meters(Core(layers=1))["error"]


def test_steps_that_a_device_overwrote_before_they_were_read_are_told_of(monkeypatch):
    """Of stages, the one that lost most: a step that is missing in one of them is not whole."""
    lost = iter((3, 7))
    stages = {}

    def paging_on_device(worker):
        curve = ExpertHistogram(2, 8).curves()
        followed = stages.setdefault(worker.rank, SimpleNamespace(curves=lambda: curve, lost=None))
        followed.lost = next(lost) if followed.lost is None else followed.lost
        return SimpleNamespace(layers=["layer"] * 2, in_graph=object(), routing=followed, slots=4)

    monkeypatch.setattr(expert_meter, "paging_of", paging_on_device)
    assert meter_service.meters(Core(stages=2))["experts"]["lost_steps"] == 7
