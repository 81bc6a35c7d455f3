"""A whole plan for one model, budget and workload: every split with what it gives, the one to take, and why."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wisp.allocator.baselines import BASELINES, static_oracle
from wisp.allocator.budget import Budget
from wisp.allocator.costs import Costs
from wisp.allocator.demand import ExpertDemand, prior_demand, traced_demand
from wisp.allocator.kv_demand import KvDemand, PriorKv
from wisp.allocator.kv_layout import KvLayout
from wisp.allocator.prediction import Predictor, Row
from wisp.allocator.question import Question
from wisp.allocator.remedies import settings_that_fit
from wisp.allocator.split import Rates, Split, split
from wisp.errors import AdmissionFloorError, ConfigError
from wisp.trace import RoutingTrace


@dataclass(frozen=True)
class Plan:
    """The answer."""

    question: Question
    budget: Budget
    layout: KvLayout
    demand: ExpertDemand
    """Of all streams together."""
    kv: KvDemand
    """And whose turns were planned for."""
    split: Split
    rows: tuple[Row, ...]
    """Every admissible split, by ascending slots."""
    choice: Row
    runner_up: Row | None
    baselines: Mapping[str, Row]
    """What others would choose; the static oracle of these rates is the choice itself."""


def make_plan(question: Question, trace: RoutingTrace | None = None, kv: KvDemand | None = None) -> Plan:
    """Plan by the routing of a trace of this model and by recorded KV references, or by the stated priors.

    Raises:
        AdmissionFloorError: not even the floor fits; the message names settings with which it would.
        ConfigError: the context is longer than the model's. TraceError: see `traced_demand`.
    """
    shape, workload, budget, layout = question.shape, question.workload, question.budget, question.layout
    if shape.longest_context is not None and workload.context > shape.longest_context:
        raise ConfigError(
            f"--max-model-len is {workload.context} but the model is made for {shape.longest_context} tokens; set it "
            f"to {shape.longest_context} or less"
        )
    if not budget.admissible_slots():
        raise AdmissionFloorError(budget.floor_bytes, budget.total_bytes, settings_that_fit(question))
    if trace is None:
        alone, together = prior_demand(shape, 1), prior_demand(shape, workload.sequences)
    else:
        alone = together = traced_demand(trace, shape, workload)
    costs = Costs(shape, question.calibration)
    kv = kv or PriorKv(layout, workload)
    predictor = Predictor(costs, layout, question.kv_dtype, kv, alone, together)
    rates = workload_rates(predictor)
    answer = split(budget, rates)
    rows = tuple(map(predictor.row, answer.candidates))
    others = {name: choose for name, choose in BASELINES.items() if choose is not static_oracle}
    row_of = dict(zip(answer.candidates, rows, strict=True))
    return Plan(
        question=question,
        budget=budget,
        layout=layout,
        demand=together,
        kv=kv,
        split=answer,
        rows=rows,
        choice=row_of[answer.choice],
        runner_up=row_of[answer.runner_up] if answer.runner_up else None,
        baselines={name: predictor.row(choose(budget, rates)) for name, choose in others.items()},
    )


def workload_rates(predictor: Predictor) -> Rates:
    """Both streams' misses a second of the workload as it would run without misses.

    In one round each of its streams takes a turn: its new tokens are prefilled, one stream after the other, then all
    decode side by side.
    """
    costs, workload, layout, demand = predictor.costs, predictor.workload, predictor.layout, predictor.together
    steps = workload.output * workload.sequences / demand.streams
    prefill_seconds = workload.sequences * costs.compute_seconds(workload.new, workload)
    round_seconds = steps * predictor.resident_step_seconds(demand) + prefill_seconds
    chunks = workload.sequences * len(workload.chunks(workload.new))
    blocks = max(1, -(-workload.history // layout.block_tokens))
    slots = range(costs.shape.num_experts + 1)
    return Rates(
        expert_misses=demand.misses_a_step * steps / round_seconds,
        seconds_per_expert_miss=costs.fault_seconds,
        streamed_seconds=np.array([chunks * costs.stream_seconds(each) / round_seconds for each in slots]),
        kv_misses=lambda kept: predictor.kv.lost_share(kept) * workload.sequences * blocks / round_seconds,
        seconds_per_kv_miss=np.array([costs.lost_history_seconds(each, workload) / blocks for each in slots]),
    )
