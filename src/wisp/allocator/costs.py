"""Seconds: of a missed expert, of a decode step, of a prefill step.

A prefill step streams every expert without a slot past the kernel once, whatever its length. So what a lost KV block
costs depends on the slots and on the chunk, not on its tokens alone: a history that fits into the chunk of its turn's
new tokens costs its computation only, a longer one streams the experts once more for each further chunk.
"""

from dataclasses import dataclass

import numpy as np

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

    def decode_seconds(self, experts: float, kv_bytes: float, streams: float = 1.0) -> float:
        """A decode step without faults.

        Args:
            experts: distinct experts that it needs, summed over all layers.
            kv_bytes: KV that it reads, of all its sequences.
            streams: how many sequences it has.
        """
        shape, rates = self.shape, self.rates
        overhead = shape.layers * rates.layer_seconds + shape.moe_layers * rates.decide_seconds
        return (
            overhead
            + streams * rates.sequence_seconds
            + shape.decode_weight_bytes / rates.device_bytes_per_second
            + experts * shape.expert_bytes / rates.expert_bytes_per_second
            + kv_bytes / rates.kv_bytes_per_second
        )

    def stream_seconds(self, slots: int) -> float:
        """What every prefill step pays for the experts that have no slot."""
        missing = self.shape.num_experts - slots
        return missing * self.shape.slot_bytes / self.rates.stream_bytes_per_second

    def compute_seconds(self, tokens: int, workload: Workload) -> float:
        """The prefill of so many tokens without streaming.

        By what was measured where that was this very model; otherwise by launches where a chunk is short, and by
        arithmetic where it is long.
        """
        if self.rates.prefill and self.rates.model == str(self.shape):
            return sum(_between(self.rates.prefill, chunk) for chunk in workload.chunks(tokens))
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


def _between(points: tuple[tuple[int, float], ...], tokens: int) -> float:
    """Seconds by the line between the two nearest points; beyond the last as steeply as before it, at least level."""
    if len(points) > 1 and tokens > points[-1][0]:
        (left, low), (right, high) = points[-2:]
        return high + max(0.0, (high - low) / (right - left)) * (tokens - right)
    return float(np.interp(tokens, [each for each, _ in points], [seconds for _, seconds in points]))
