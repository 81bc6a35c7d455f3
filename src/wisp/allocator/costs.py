"""Seconds: of a missed expert, of a decode step, of a prefill step.

A prefill step streams every expert without a slot past the kernel once, whatever its length. So what a lost KV block
costs depends on the slots and on the chunk, not on its tokens alone: a history that fits into the chunk of its turn's
new tokens costs its computation only, a longer one streams the experts once more for each further chunk.
"""

from dataclasses import dataclass

from wisp.allocator.calibration import Calibration
from wisp.allocator.model_shape import ModelShape
from wisp.allocator.workload import Workload


@dataclass(frozen=True)
class Costs:
    """The costs of one model at the rates of one calibration."""

    shape: ModelShape
    rates: Calibration

    @property
    def fault_seconds(self) -> float:
        """c_exp of the paper: one missing expert of one layer, read over the link by a decode step."""
        return self.shape.expert_bytes / self.rates.fault_bytes_per_second

    def decode_seconds(self, experts: float, kv_bytes: float) -> float:
        """A decode step without faults.

        Args:
            experts: distinct experts that it needs, summed over all layers.
            kv_bytes: KV that it reads, of all its sequences.
        """
        read = self.shape.decode_weight_bytes + experts * self.shape.expert_bytes + kv_bytes
        overhead = self.shape.layers * self.rates.layer_seconds + self.shape.moe_layers * self.rates.decide_seconds
        return overhead + read / self.rates.device_bytes_per_second

    def stream_seconds(self, slots: int) -> float:
        """What every prefill step pays for the experts that have no slot."""
        missing = self.shape.num_experts - slots
        return missing * self.shape.slot_bytes / self.rates.stream_bytes_per_second

    def compute_seconds(self, tokens: int, workload: Workload) -> float:
        """The prefill of so many tokens without streaming: by launches where a chunk is short, else by arithmetic."""
        least = self.shape.layers * self.rates.prefill_layer_seconds
        each = 2 * self.shape.active_parameters / self.rates.prefill_flops_per_second
        return sum(max(least, chunk * each) for chunk in workload.chunks(tokens))

    def prefill_seconds(self, tokens: int, slots: int, workload: Workload) -> float:
        """The prefill of so many tokens, chunk by chunk."""
        return self.compute_seconds(tokens, workload) + len(workload.chunks(tokens)) * self.stream_seconds(slots)

    def lost_history_seconds(self, slots: int, workload: Workload) -> float:
        """What a turn takes longer when its conversation's history has to be computed again."""
        whole = self.prefill_seconds(workload.history + workload.new, slots, workload)
        return whole - self.prefill_seconds(workload.new, slots, workload)
