"""A fit finds the costs that made the steps, never a negative one, and says what it could not tell."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.allocator import STATED, Calibration, Workload
from wisp.allocator.costs import Costs
from wisp.allocator.measurement import CopyPoint, DecodePoint, Measurements, PrefillPoint
from wisp.allocator.rates_fit import fit_steps, prefill_seconds, rates
from wisp.errors import ConfigError

LAYERS, TOP_K = 48, 8
PLANS = (
    *((streams, 32, TOP_K, 0) for streams in (1, 2, 4, 8)),
    (8, 32, 2 * TOP_K, 0),
    (1, 2000, TOP_K, 0),
    (8, 2000, TOP_K, 0),
    (1, 32, TOP_K, 4),
    (1, 32, TOP_K, 8),
)
costs = st.tuples(
    st.floats(1e-3, 1e-1), st.floats(0, 1e-3), st.floats(0, 1e-5), st.floats(0, 1e-6), st.floats(1e-6, 1e-3)
)


def points(step, stream, expert, token, fault, *, noise=0.0, seed=0):
    draw = np.random.default_rng(seed)
    found = []
    for streams, context, width, shift in PLANS:
        experts, faults = LAYERS * width, LAYERS * shift
        seconds = step + streams * stream + experts * expert + streams * context * token + faults * fault
        seconds *= 1 + noise * draw.uniform(-1, 1)
        found.append(DecodePoint(streams, context, experts, faults, seconds, 40, is_pinned=not shift))
    return found


@given(costs)
def test_exact_steps_give_back_their_costs(made):
    fit = fit_steps(points(*made))
    for point in points(*made):
        told = fit.seconds(point.streams, point.experts, point.streams * point.context, point.faults)
        assert told == pytest.approx(point.seconds, rel=1e-6)
    assert fit.fault == pytest.approx(made[-1], rel=1e-3, abs=1e-9)


@given(costs, st.integers(0, 100))
def test_noisy_steps_are_met_within_their_noise_and_no_cost_is_negative(made, seed):
    fit = fit_steps(points(*made, noise=0.05, seed=seed))
    assert min(fit.step, fit.stream, fit.expert, fit.token, fit.fault) >= 0
    assert fit.worst <= 0.25


def test_no_step_is_no_cost():
    with pytest.raises(ConfigError, match="calibrate anew"):
        fit_steps([])


def measured(decode, *, moved=0.0):
    return Measurements(
        decode=tuple(decode),
        prefill=(PrefillPoint(128, 0.06, moved), PrefillPoint(512, 0.062, moved), PrefillPoint(4096, 0.08, moved)),
        copies=(CopyPoint(9 << 20, 190e-6, "copy"), CopyPoint(9 << 20, 200e-6, "rows")),
        device_bytes_per_second=3.7e12,
        decide_seconds=2e-6,
        expert_slots=16,
    )


@pytest.fixture
def qwen(shape):
    return shape("qwen3-30b-a3b")


def calibration(qwen, measurements):
    found, notes = rates(qwen, measurements)
    return Calibration(
        "m", str(qwen), "2026-11-30", prefill=prefill_seconds(measurements, qwen), notes=tuple(notes), **found
    )


def test_a_plan_by_the_fitted_rates_meets_the_measured_steps(qwen):
    made = points(3e-3, 5e-5, 1e-6, 2e-8, 185e-6)
    rated = Costs(qwen, calibration(qwen, measured(made)))
    for point in made:
        kv_bytes = point.streams * point.context * qwen.kv_bytes_a_token()
        told = rated.decode_seconds(point.experts, kv_bytes, point.streams) + point.faults * rated.fault_seconds
        assert told == pytest.approx(point.seconds, rel=1e-3)


def test_a_fit_that_meets_no_step_is_told_to_be_no_guide(qwen):
    made = points(3e-3, 5e-5, 1e-6, 2e-8, 185e-6)
    assert calibration(qwen, measured(made)).notes[-1].endswith("within 0%")
    made[2] = replace(made[2], seconds=20 * made[2].seconds)
    assert "by 9" in (told := calibration(qwen, measured(made)).notes[-1])
    assert told.endswith("calibrate again while nothing else runs")


def test_a_prefill_is_told_by_the_line_between_the_measured_ones(qwen):
    rated = Costs(qwen, calibration(qwen, measured(points(3e-3, 0, 0, 0, 1e-4))))
    workload = Workload.typical(40960, 1, chunk=8192)
    for tokens, seconds in ((64, 0.06), (512, 0.062), (2304, 0.071), (4096, 0.08), (8192, 0.0806 + 0.02)):
        assert rated.compute_seconds(tokens, workload) == pytest.approx(seconds, rel=0.01)


def test_another_models_prefills_are_not_taken_over(qwen, shape):
    rates_of_qwen = calibration(qwen, measured(points(3e-3, 0, 0, 0, 1e-4)))
    other = Costs(shape("mixtral-8x7b"), rates_of_qwen)
    assert other.compute_seconds(64, Workload.typical(4096, 1)) == pytest.approx(32 * 0.06 / 48)


def test_what_was_streamed_is_taken_off_a_prefill(qwen):
    moved = 0.05 / 200e-6 * (9 << 20)
    assert prefill_seconds(measured([], moved=moved), qwen)[0] == pytest.approx((128, 0.01))


def test_what_could_not_be_told_is_said(qwen):
    unpinned = [replace(point, faults=3.0) if point.is_pinned else point for point in points(3e-3, 0, 0, 0, 1e-4)]
    assert any("were to have no faults had up to 3" in note for note in rates(qwen, measured(unpinned))[1])
    resident = [point for point in points(3e-3, 0, 0, 0, 1e-4) if point.is_pinned]
    found, notes = rates(qwen, measured(resident))
    assert any("no fault was measured" in note for note in notes)
    assert qwen.expert_bytes / found["fault_bytes_per_second"] == pytest.approx(200e-6)
    hidden = rates(qwen, measured(points(3e-3, 0, 0, 0, 1e-4), moved=1e12))[1]
    assert any("streaming hid" in note for note in hidden)
    assert not any("streaming hid" in note for note in rates(qwen, measured(resident))[1])


def test_the_stated_rates_are_as_before():
    assert STATED.sequence_seconds == 0
    assert STATED.expert_bytes_per_second == STATED.kv_bytes_per_second == STATED.device_bytes_per_second
