"""What one split gives: KV, concurrency, hits, speed."""

from dataclasses import dataclass

from wisp.allocator.costs import Costs
from wisp.allocator.demand import ExpertDemand
from wisp.allocator.kv_demand import KvDemand
from wisp.allocator.kv_layout import KV_DTYPES, KvLayout
from wisp.allocator.split import Candidate
from wisp.allocator.workload import Workload


@dataclass(frozen=True)
class Row:
    """What one split gives. Predictions, from the rates of a calibration."""

    candidate: Candidate
    kv_tokens: int
    concurrency: float
    """Sequences of the longest length whose KV fits at once."""
    hit_ratio: float
    """Of expert references while all streams decode."""
    decode_tok_s: float
    """Of one stream: alone by the prior; in a trace, as many streams beside it as were recorded."""
    decode_tok_s_all: float
    """Of all streams together."""
    ttft_s: float
    """Of a turn on its own whose conversation's history is in the KV cache."""
    ttft_lost_s: float
    """Of one whose history has to be computed again."""
    lost_share: float
    """The share of histories that this happens to."""


@dataclass(frozen=True)
class Predictor:
    """Makes rows for one model and workload."""

    costs: Costs
    layout: KvLayout
    kv_dtype: str
    kv: KvDemand
    alone: ExpertDemand
    """Of one stream."""
    together: ExpertDemand
    """Of all streams."""

    @property
    def workload(self) -> Workload:
        """The turns that are predicted."""
        return self.kv.workload

    def row(self, candidate: Candidate) -> Row:
        """What this split gives."""
        workload, slots = self.workload, candidate.expert_slots
        hit_seconds = self.costs.prefill_seconds(workload.new, slots, workload)
        return Row(
            candidate=candidate,
            kv_tokens=self.layout.tokens(candidate.kv_blocks, workload.sequences),
            concurrency=candidate.kv_blocks / self.layout.sequence_blocks(workload.context),
            hit_ratio=self.together.hit_ratio(slots),
            decode_tok_s=1 / self.step_seconds(self.alone, slots),
            decode_tok_s_all=self.together.streams / self.step_seconds(self.together, slots),
            ttft_s=hit_seconds,
            ttft_lost_s=hit_seconds + self.costs.lost_history_seconds(slots, workload),
            lost_share=self.kv.lost_share(candidate.kv_blocks),
        )

    def step_seconds(self, demand: ExpertDemand, slots: int) -> float:
        """A decode step of this demand's streams: without faults, and the faults one after the other."""
        faults = float(demand.misses_a_step[slots])
        return self.resident_step_seconds(demand) + faults * self.costs.fault_seconds

    def resident_step_seconds(self, demand: ExpertDemand) -> float:
        """The same step with every expert resident; its streams read a history each."""
        kv_bytes = self.costs.shape.kv_bytes_a_token(KV_DTYPES[self.kv_dtype])
        read = demand.streams * self.workload.history * kv_bytes
        return self.costs.decode_seconds(demand.references_a_step, read, demand.streams)
