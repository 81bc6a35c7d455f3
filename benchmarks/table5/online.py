"""MV-WSA replanned while the second half runs, always by what was referenced last; judged by an upper bound.

Every `EVERY` turns it plans anew by the references of the last `WINDOW` turns, and the slots hold until the next plan.
The bound: every slot gained begins with a fault, and a block is charged as lost if any of the pools since its last use
was too small for its depth now. The first half counts as run under the first plan. What moving memory takes,
milliseconds a time, is left out.
"""

from dataclasses import replace

import numpy as np
from judge import middle, usable_blocks
from numpy.typing import NDArray
from workflows import Workflow

from wisp.allocator import split
from wisp.allocator.costs import Costs
from wisp.allocator.demand import ExpertDemand
from wisp.allocator.kv_demand import TracedKv
from wisp.allocator.plan import workload_rates
from wisp.allocator.prediction import Predictor
from wisp.kv_trace import KvEvent
from wisp.workingset import ExpertHistogram, KvReuse, MissCurve
from wisp.workingset.places import previous_places

EVERY, WINDOW = 8, 40


def replanned(workflow: Workflow) -> tuple[list[int], float]:
    """The slots of each plan, and seconds lost in the second half, as `Verdict.lost` counts them."""
    recording, question = workflow.recording, workflow.question
    kv, prefill = recording.kv, recording.prefill_tokens
    assert kv is not None
    assert prefill is not None
    costs, workload = Costs(question.shape, question.calibration), question.workload
    turns = np.flatnonzero(prefill)
    first = int(np.searchsorted(turns, middle(recording)))
    plans = list(range(first, len(turns), EVERY))
    ends = [*plans[1:], len(turns)]
    misses, steps = _misses_until(workflow, turns)
    reuse = KvReuse.of(kv)
    turn_of = np.searchsorted(turns, reuse.steps, side="right") - 1

    chosen = []
    for now in plans:
        start = max(0, now - WINDOW)
        recent = (turn_of >= start) & (turn_of < now)
        seen = replace(reuse, depths=reuse.depths[recent], steps=reuse.steps[recent])
        turn = replace(
            workload,
            history=round(seen.returns * kv.block_tokens / (now - start)),
            new=max(1, round(prefill[turns[start:now]].mean())),
            output=max(1, round((steps[now] - steps[start]) / (now - start))),
        )
        decoded = steps[now] - steps[start]
        demand = ExpertDemand((misses[now] - misses[start]) / decoded, float(workload.sequences), 0, "the last turns")
        known = TracedKv(question.layout, turn, seen, kv.block_tokens, "the last turns")
        predictor = Predictor(costs, question.layout, question.kv_dtype, known, demand, demand)
        chosen.append(split(question.budget, workload_rates(predictor)).choice.expert_slots)

    plan_of = np.searchsorted(plans, np.arange(len(turns)), side="right") - 1
    pools = np.array([usable_blocks(workflow, each) for each in chosen])
    last_use = np.searchsorted(turns, kv.steps[_last_places(workflow)], side="right") - 1
    lost = 0.0
    again = np.zeros(len(turns), dtype=np.int64)
    for depth, turn_now, turn_then in zip(reuse.depths, turn_of, last_use, strict=True):
        if turn_now >= first:
            again[turn_now] += depth >= pools[max(0, plan_of[turn_then]) : plan_of[turn_now] + 1].min()
    for place in range(first, len(turns)):
        new = int(prefill[turns[place]])
        slots = chosen[plan_of[place]]
        lost += costs.prefill_seconds(new + int(again[place]) * kv.block_tokens, slots, workload)
        lost -= costs.compute_seconds(new, workload)
    faults = sum(
        float(misses[end][slots] - misses[at][slots]) for slots, at, end in zip(chosen, plans, ends, strict=True)
    )
    gained = int(np.maximum(np.diff(chosen), 0).sum()) * question.shape.moe_layers
    return chosen, lost + (faults + gained) * costs.fault_seconds


def _misses_until(workflow: Workflow, turns: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Before each turn and in all, by the online histogram: misses [turns + 1, experts + 1], steps [turns + 1]."""
    recording = workflow.recording
    prefill, routing = recording.prefill_tokens, recording.routing
    assert prefill is not None
    members = np.stack([routing.membership(layer) for layer in range(routing.layers)], axis=1)
    histogram = ExpertHistogram(routing.layers, routing.num_experts, half_life_steps=None)
    misses, steps = [], []
    for step in range(routing.steps):
        if prefill[step]:
            misses.append(MissCurve.total(histogram.curves()).misses)
            steps.append(round(histogram.steps))
        else:
            histogram.observe(members[step])
    return np.array([*misses, MissCurve.total(histogram.curves()).misses]), np.array([*steps, round(histogram.steps)])


def _last_places(workflow: Workflow) -> NDArray[np.int64]:
    """For each of `KvReuse.depths`, where its block was referenced before."""
    kv = workflow.recording.kv
    assert kv is not None
    before, _ = previous_places(kv.blocks)
    return before[(before >= 0) & (kv.events != KvEvent.DUPLICATE)]
