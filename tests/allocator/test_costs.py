"""Stated costs and the prior give what was measured in benchmarks/iso_vram, within stated bounds."""

import json
from pathlib import Path

import pytest

from wisp.allocator import STATED, Workload
from wisp.allocator.costs import Costs
from wisp.allocator.demand import prior_demand

RESULTS = Path(__file__).parents[2] / "benchmarks" / "iso_vram" / "results.json"
FIRST, SECOND = "2026-11-30T16:36", "2026-11-30T20:27"
"""Calls of the benchmark; the stated rates were taken from the first."""


@pytest.fixture
def costs(shape):
    return Costs(shape("qwen3-30b-a3b"), STATED)


def measured(call, slots, batch):
    """The one row of such slots: paged, or with everything resident as stock vLLM has it."""
    arm = "vllm-resident" if slots == 128 else "wisp"
    rows = json.loads(RESULTS.read_text())["rows"]
    (row,) = [
        row for row in rows if (row["call"], row["arm"], row["expert_slots"], row["batch"]) == (call, arm, slots, batch)
    ]
    return row


def test_the_stated_model_is_the_one_that_was_measured(costs):
    assert STATED.model == str(costs.shape)


@pytest.mark.parametrize("call", [FIRST, SECOND])
@pytest.mark.parametrize("batch", [1, 4, 8])
def test_a_decode_step_without_faults(costs, call, batch):
    demand = prior_demand(costs.shape, batch)
    found = costs.decode_seconds(demand.references_a_step, 0)
    assert found == pytest.approx(measured(call, 128, batch)["step_s"], rel=0.1)


@pytest.mark.parametrize(
    ("call", "slots", "moved_bound", "alone_bound", "bound"),
    [
        (FIRST, 60, 0.06, 0.03, 0.1),
        (SECOND, 39, 0.06, 0.03, 0.1),
        (SECOND, 60, 0.06, 0.03, 0.1),
        (SECOND, 88, 0.09, 0.04, 0.11),
    ],
)
@pytest.mark.parametrize("batch", [1, 4, 8])
def test_a_paged_decode_step(costs, call, slots, moved_bound, alone_bound, bound, batch):
    """The prior's misses are a few percent off those of the replayed routing."""
    demand, row = prior_demand(costs.shape, batch), measured(call, slots, batch)
    moved_gib = demand.misses_a_step[slots] * costs.shape.expert_bytes / 2**30
    assert moved_gib == pytest.approx(row["moved_gib_a_step"], rel=moved_bound)
    step = costs.decode_seconds(demand.references_a_step, 0) + demand.misses_a_step[slots] * costs.fault_seconds
    assert step == pytest.approx(row["step_s"], rel=alone_bound if batch == 1 else bound)


@pytest.mark.parametrize(
    ("call", "slots", "tokens", "bound"),
    [
        (FIRST, 128, 512, 0.05),
        (FIRST, 128, 4096, 0.05),
        (FIRST, 60, 512, 0.06),
        (FIRST, 60, 4096, 0.06),
        (SECOND, 128, 512, 0.05),
        (SECOND, 39, 512, 0.05),
        (SECOND, 39, 4096, 0.05),
        (SECOND, 60, 512, 0.07),
        (SECOND, 60, 4096, 0.06),
        (SECOND, 88, 512, 0.09),
        (SECOND, 88, 4096, 0.09),
    ],
)
def test_the_time_to_a_first_token(costs, call, slots, tokens, bound):
    """Left out: 4096 tokens with everything resident in the second call, which took 98 ms, and 75 ms in the first."""
    found = costs.prefill_seconds(tokens, slots, Workload.typical(4096, 1))
    assert found == pytest.approx(measured(call, slots, 1)["ttft_s"][str(tokens)], rel=bound)


def test_a_prefill_step_streams_the_experts_without_slots_once_whatever_its_length(costs):
    workload = Workload.typical(8192, 1, chunk=2048)
    for tokens, chunks in ((1, 1), (2048, 1), (2049, 2), (8192, 4)):
        streamed = costs.prefill_seconds(tokens, 40, workload) - costs.prefill_seconds(tokens, 128, workload)
        assert streamed == pytest.approx(chunks * 88 * costs.shape.slot_bytes / STATED.stream_bytes_per_second)


def test_a_lost_history_costs_no_streaming_if_it_fits_into_the_chunk(costs):
    long, short = (Workload.typical(8192, 1, chunk=chunk) for chunk in (8192, 1024))
    assert costs.lost_history_seconds(8, long) == pytest.approx(costs.lost_history_seconds(128, long))
    assert costs.lost_history_seconds(8, short) > 10 * costs.lost_history_seconds(128, short)
