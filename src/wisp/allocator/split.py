"""MV-WSA: the split of one budget between expert slots and KV blocks that loses least time.

For every whole number of slots C that admits the workload, the blocks are what is left, kappa(C), and the time lost is

    T(C) = c_exp m_exp(C) + s(C) + c_kv(C) m_kv(kappa(C))

in seconds a second of the workload: the paper's objective, plus s(C), what compulsory prefills pay to stream the
experts without slots, and with a c_kv that depends on the slots for the same reason (`costs.py`). Miss curves have
cliffs, so the least T is looked for among all C, some hundred at most; where everything is convex it meets the
paper's condition that a byte more is worth the same on either side, up to one slot.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wisp.allocator.budget import Budget
from wisp.errors import AdmissionFloorError, ConfigError

MORE_BYTES = 128 << 20
"""The step in which a budget's worth on either side is told."""


@dataclass(frozen=True, eq=False)
class Rates:
    """Misses a second of one workload, as it would run without any, and what each costs."""

    expert_misses: NDArray[np.float64]
    """[experts + 1]: m_exp, by slots."""
    seconds_per_expert_miss: float
    streamed_seconds: NDArray[np.float64]
    """[experts + 1]: s, by slots."""
    kv_misses: Callable[[int], float]
    """m_kv: blocks that have to be computed again, by blocks."""
    seconds_per_kv_miss: NDArray[np.float64]
    """[experts + 1]: c_kv, by slots."""

    def candidate(self, slots: int, blocks: int, *, is_admissible: bool = True) -> "Candidate":
        """What this split would lose."""
        return Candidate(
            slots,
            blocks,
            float(self.expert_misses[slots]) * self.seconds_per_expert_miss,
            float(self.streamed_seconds[slots]),
            self.kv_misses(blocks) * float(self.seconds_per_kv_miss[slots]),
            is_admissible,
        )


@dataclass(frozen=True)
class Candidate:
    """One way to divide the budget; times are seconds lost a second of the workload."""

    expert_slots: int
    kv_blocks: int
    fault_seconds: float
    streamed_seconds: float
    kv_seconds: float
    is_admissible: bool = True
    """Whether the scheduler can admit the workload: at least top-k slots, at least kappa_min blocks."""

    @property
    def seconds_lost(self) -> float:
        """T."""
        return self.fault_seconds + self.streamed_seconds + self.kv_seconds


@dataclass(frozen=True)
class Split:
    """Every admissible split, and the one to take."""

    candidates: tuple[Candidate, ...]
    """By ascending slots."""
    choice: Candidate
    runner_up: Candidate | None
    """The best of the others; None if the budget admits only one."""
    value_of_more_experts: float
    """T saved by `MORE_BYTES` more, all given to slots: a part of a slot saves that part of what it would."""
    value_of_more_kv: float
    """T saved by `MORE_BYTES` more, all given to blocks."""


def split(budget: Budget, rates: Rates) -> Split:
    """The admissible split of least T; of equals, the one with the fewest slots, so that KV gets what is left.

    Raises:
        AdmissionFloorError: not even top-k slots and kappa_min blocks fit.
        ConfigError: the rates are not of this budget's number of experts.
    """
    check_rates(budget, rates)
    candidates = tuple(rates.candidate(slots, budget.blocks_left(slots)) for slots in budget.admissible_slots())
    if not candidates:
        raise AdmissionFloorError(budget.floor_bytes, budget.total_bytes)
    choice, *others = sorted(candidates, key=lambda each: (each.seconds_lost, each.expert_slots))
    return Split(
        candidates,
        choice,
        others[0] if others else None,
        _value_of_more_experts(choice, budget, rates),
        _value_of_more_kv(choice, budget, rates),
    )


def check_rates(budget: Budget, rates: Rates) -> None:
    """Raise `ConfigError` unless the rates cover every number of slots of the budget."""
    lengths = {len(rates.expert_misses), len(rates.streamed_seconds), len(rates.seconds_per_kv_miss)}
    if lengths != {budget.most_slots + 1}:
        raise ConfigError(
            f"rates for {sorted(lengths)} slot counts do not fit a layer of {budget.most_slots} experts; "
            f"give {budget.most_slots + 1}, from no slot to one an expert"
        )


def _value_of_more_experts(choice: Candidate, budget: Budget, rates: Rates) -> float:
    slots = np.arange(budget.most_slots + 1)
    more = min(float(budget.most_slots), choice.expert_slots + MORE_BYTES / budget.slot_bytes)
    lost = rates.expert_misses * rates.seconds_per_expert_miss + rates.streamed_seconds
    lost = lost + rates.kv_misses(choice.kv_blocks) * rates.seconds_per_kv_miss
    return choice.seconds_lost - float(np.interp(more, slots, lost))


def _value_of_more_kv(choice: Candidate, budget: Budget, rates: Rates) -> float:
    more = rates.candidate(choice.expert_slots, choice.kv_blocks + MORE_BYTES // budget.block_bytes)
    return choice.seconds_lost - more.seconds_lost
