"""The recorded traces of the demo model are real ones: curve, replay and online histogram agree on them."""

from pathlib import Path

import numpy as np
import pytest

from wisp.kv_trace import KvEvent
from wisp.recording import Recording
from wisp.simulate import simulate
from wisp.workingset import BlockHistogram, ExpertHistogram, MissCurve, miss_curves

TRACES = sorted((Path(__file__).parents[2] / "demo" / "traces").glob("*.npz"))


@pytest.fixture(params=TRACES, ids=lambda path: path.stem)
def recording(request):
    return Recording.load(request.param)


def test_there_is_one_for_each_domain_and_they_are_small():
    assert [path.stem for path in TRACES] == ["prose", "python", "shell"]
    assert all(path.stat().st_size < 100_000 for path in TRACES)


def test_decode_steps_take_top_k_experts(recording):
    decode = recording.phase("decode")
    assert (decode.layers, decode.num_experts) == (6, 32)
    assert decode.steps > 200
    assert np.all(decode.widths() == 4)
    assert np.all(decode.tokens == 1)


def test_curve_replay_and_online_histogram_agree(recording):
    decode = recording.phase("decode")
    total = MissCurve.total(miss_curves(decode))
    histogram = ExpertHistogram(decode.layers, decode.num_experts, half_life_steps=None)
    members = np.array([decode.membership(layer) for layer in range(decode.layers)])
    for step in range(decode.steps):
        histogram.observe(members[:, step])
    assert MissCurve.total(histogram.curves()).misses.tolist() == total.misses.tolist()
    for slots in (4, 16, 32):
        assert total.misses_at(slots) == simulate(decode, slots).total_faults
    assert simulate(decode, 16, "belady").total_faults < total.misses_at(16)


def test_every_prefix_hit_is_a_block_that_was_there(recording):
    kv = recording.kv
    histogram = BlockHistogram(half_life_steps=None)
    for step in np.unique(kv.steps):
        histogram.observe(kv.blocks[kv.steps == step], int(step))
    curve = histogram.curve()
    assert curve.cold_misses == kv.count(KvEvent.INSERT)
    assert curve.references - curve.misses_at(kv.pool_blocks) == kv.count(KvEvent.HIT) > 0
