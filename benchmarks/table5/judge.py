"""What every split would have lost in the second half of a workflow, by replaying both streams exactly.

Experts: misses of its decode steps by LRU stack distances, which are the pager's faults (`check` replays the pager's
own code as well). KV: each turn's lost blocks by stack distances of the block pool (`check`: `simulate_kv`), and then
its prefill in whole chunks, each of which streams the experts without slots. Both stacks are warm from the first half.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from workflows import Workflow

from wisp.allocator.costs import Costs
from wisp.allocator.kv_layout import NULL_BLOCKS
from wisp.recording import Recording
from wisp.simulate import simulate, simulate_kv
from wisp.trace import RoutingTrace
from wisp.workingset import KvReuse, MissCurve, miss_curves


@dataclass(frozen=True, eq=False)
class Verdict:
    """Seconds of the second half; every array is [experts + 1], by slots."""

    lost: NDArray[np.float64]
    """T: faults, streamed experts of all prefills, and what lost histories cost."""
    whole: NDArray[np.float64]
    """T and the work itself: decode steps with everything resident, prefills of what is new."""
    faults: NDArray[np.float64]
    """Not seconds: how many."""
    lost_blocks: NDArray[np.int64]
    """Not seconds: how many KV blocks had to be computed again."""


def middle(recording: Recording) -> int:
    """The step with which the second half of the turns begins."""
    assert recording.prefill_tokens is not None
    prefills = np.flatnonzero(recording.prefill_tokens)
    return int(prefills[len(prefills) // 2])


def first_half(recording: Recording) -> Recording:
    """What an estimate may look at."""
    assert recording.kv is not None
    assert recording.prefill_tokens is not None
    assert recording.requests is not None
    stop = middle(recording)
    early = np.arange(recording.routing.steps) < stop
    kept = recording.kv.steps < stop
    kv = recording.kv
    cut = replace(kv, blocks=kv.blocks[kept], steps=kv.steps[kept], events=kv.events[kept])
    return Recording(
        recording.routing.select(early),
        recording.prefill_tokens[early],
        recording.requests[early],
        recording.expert_bytes,
        replace(cut, preemptions=kv.preemptions[kv.preemptions < stop]),
    )


def judge(workflow: Workflow) -> Verdict:
    """Of every number of slots."""
    question, recording = workflow.question, workflow.recording
    costs, budget, workload = Costs(question.shape, question.calibration), question.budget, question.workload
    kv, prefill = recording.kv, recording.prefill_tokens
    assert kv is not None
    assert prefill is not None
    start = middle(recording)
    late = recording.phase("decode").steps - first_half(recording).phase("decode").steps
    misses = _misses(recording.phase("decode")) - _misses(first_half(recording).phase("decode"))
    reuse = KvReuse.of(kv)
    turns = np.flatnonzero(prefill[start:]) + start
    place = np.searchsorted(turns, reuse.steps)
    counted = (place < len(turns)) & (reuse.steps >= start)
    assert np.all(turns[place[counted]] == reuse.steps[counted]), "a block came back in a step that computes no prompt"
    depths, place = reuse.depths[counted], place[counted]
    own = [int(count) for count in prefill[turns]]
    slots = np.arange(question.shape.num_experts + 1)
    lost, lost_blocks = np.zeros(len(slots)), np.zeros(len(slots), dtype=np.int64)
    for each in slots:
        gone = depths >= usable_blocks(workflow, int(each))
        again = np.bincount(place[gone], minlength=len(turns)) * kv.block_tokens
        lost_blocks[each] = gone.sum()
        for new, more in zip(own, again.tolist(), strict=True):
            lost[each] += costs.prefill_seconds(new + more, int(each), workload)
    compute = sum(costs.compute_seconds(new, workload) for new in own)
    lost += misses * costs.fault_seconds - compute
    read = workload.context // 2 * question.shape.kv_bytes_a_token() * workload.sequences
    step = costs.decode_seconds(misses[0] / late, read)
    inadmissible = ~np.isin(slots, budget.admissible_slots())
    lost[inadmissible] = np.inf
    return Verdict(lost, lost + compute + step * late, misses, lost_blocks)


def usable_blocks(workflow: Workflow, slots: int) -> int:
    """Recorded blocks that fit beside so many slots, less the null block and each sequence's one that is not full."""
    question = workflow.question
    blocks = question.budget.blocks_left(slots) - NULL_BLOCKS - question.workload.sequences
    assert workflow.recording.kv is not None
    return max(0, blocks) * question.layout.block_tokens // workflow.recording.kv.block_tokens


def check(workflow: Workflow, verdict: Verdict, slots: int, layers: int) -> None:
    """`AssertionError` unless the pager's own code, in some layers, and the pool's replay count the same."""
    decode, early = workflow.recording.phase("decode"), first_half(workflow.recording).phase("decode").steps
    for layer in np.linspace(0, decode.layers - 1, layers, dtype=int):
        replayed = simulate(decode, slots, layer=int(layer)).faults[0, early:].sum()
        bits = RoutingTrace.from_membership(decode.membership(int(layer))[None])
        first = RoutingTrace.from_membership(decode.membership(int(layer))[None, :early])
        assert replayed == _misses(bits)[slots] - _misses(first)[slots]
    kv = workflow.recording.kv
    assert kv is not None
    replay = simulate_kv(kv, max(1, usable_blocks(workflow, slots)))
    late = kv.steps >= middle(workflow.recording)
    assert int((replay.returns & ~replay.found & late).sum()) == verdict.lost_blocks[slots]


def _misses(decode: RoutingTrace) -> NDArray[np.float64]:
    return MissCurve.total(miss_curves(decode)).misses
