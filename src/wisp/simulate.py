"""Replay a trace against a policy and a number of slots, without a GPU.

Of experts it drives the same `ResidentSet` as the pager, so that simulated faults are real faults. Of KV blocks it
keeps the order in which vLLM's block pool evicts.
"""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wisp.errors import ConfigError
from wisp.kv_trace import KvEvent, KvTrace
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


@dataclass(frozen=True, eq=False)
class KvReplay:
    """What a pool of so many blocks makes of the references; every array is bool [references]."""

    blocks: int
    returns: NDArray[np.bool_]
    """The block had been there before, and the engine did not compute it for another reason."""
    found: NDArray[np.bool_]
    """It still was: a hit. The other returns are capacity misses."""

    @property
    def hits(self) -> int:
        """References that find their block."""
        return int((self.returns & self.found).sum())

    @property
    def capacity_misses(self) -> int:
        """References whose block a larger pool would have kept."""
        return int((self.returns & ~self.found).sum())


def simulate_kv(trace: KvTrace, blocks: int) -> KvReplay:
    """Replay the references step by step against a pool of so many blocks, evicted by last use as vLLM does.

    A step's blocks are looked up together; then they are the last used, in order (`wisp.workingset.kv_reuse`).

    Raises:
        ConfigError: the pool has no block.
    """
    if blocks < 1:
        raise ConfigError(f"a KV pool of {blocks} blocks holds nothing; give 1 or more")
    pool: OrderedDict[int, None] = OrderedDict()
    known: set[int] = set()
    names = trace.blocks.tolist()
    returns, found = np.zeros((2, len(names)), dtype=np.bool_)
    bounds = [*np.flatnonzero(np.diff(trace.steps, prepend=-1)).tolist(), len(names)]
    for start, stop in pairwise(bounds):
        within: set[int] = set()
        for place in range(start, stop):
            name = names[place]
            returns[place] = (name in known or name in within) and trace.events[place] != KvEvent.DUPLICATE
            found[place] = name in pool or name in within
            within.add(name)
        for name in names[start:stop]:
            pool[name] = None
            pool.move_to_end(name)
        known |= within
        while len(pool) > blocks:
            pool.popitem(last=False)
    return KvReplay(blocks, returns, found)
