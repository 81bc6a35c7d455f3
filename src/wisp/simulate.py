"""Replay a trace against a policy and a number of slots, without a GPU.

It drives the same `ResidentSet` as the pager, so that simulated faults are real faults.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wisp.policies import POLICIES, make_policy
from wisp.resident import ResidentSet
from wisp.trace import RoutingTrace


@dataclass(frozen=True, eq=False)
class Replay:
    """What happened in each step; every array is int64 [layers, steps]."""

    policy: str
    slots: int
    references: NDArray[np.int64]
    faults: NDArray[np.int64]
    evictions: NDArray[np.int64]
    waves: NDArray[np.int64]

    @property
    def total_faults(self) -> int:
        """Faults of all layers and steps."""
        return int(self.faults.sum())

    @property
    def total_evictions(self) -> int:
        """Evictions of all layers and steps."""
        return int(self.evictions.sum())

    @property
    def total_references(self) -> int:
        """Experts required, summed over all layers and steps."""
        return int(self.references.sum())

    @property
    def fault_ratio(self) -> float:
        """Faults over references; 0 of a trace that references nothing."""
        return self.total_faults / max(self.total_references, 1)

    def copied_bytes(self, expert_bytes: int) -> int:
        """Bytes copied from the backing store, if one expert is `expert_bytes`."""
        return self.total_faults * expert_bytes


def simulate(trace: RoutingTrace, slots: int, policy: str = POLICIES[0], *, layer: int | None = None) -> Replay:
    """Replay every layer of the trace, or `layer` alone, each with `slots` slots and a policy of its own.

    Raises:
        UnknownPolicyError: no policy has this name. ConfigError: `slots` is not in [1, num_experts].
    """
    layers = range(trace.layers) if layer is None else [layer]
    counts = np.zeros((4, len(layers), trace.steps), dtype=np.int64)
    for row, index in enumerate(layers):
        steps = trace.layer(index)
        resident = ResidentSet(trace.num_experts, slots, make_policy(policy, future=steps))
        for column, step in enumerate(steps):
            plan = resident.plan(step)
            counts[:, row, column] = len(step), plan.faults, len(plan.evictions), len(plan.waves)
    references, faults, evictions, waves = counts
    return Replay(policy, slots, references, faults, evictions, waves)
