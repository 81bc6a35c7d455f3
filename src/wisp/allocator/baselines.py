"""Other ways to divide a budget, with the interface of MV-WSA: (budget, rates) -> Candidate.

The first three look at less than MV-WSA does, and some of what they choose cannot serve: `is_admissible` says so.
"""

from collections.abc import Callable, Mapping

from wisp.allocator.budget import Budget
from wisp.allocator.split import Candidate, Rates, check_rates, split
from wisp.errors import AdmissionFloorError

Baseline = Callable[[Budget, Rates], Candidate]

_NEGLIGIBLE = 1e-9


def half_and_half(budget: Budget, rates: Rates) -> Candidate:
    """f = 1/2: as many whole slots as half of the pageable bytes hold, one an expert at most; KV gets the rest."""
    return _at(int(max(0, budget.pageable_bytes) // 2 // budget.slot_bytes), budget, rates)


def flux_prop(budget: Budget, rates: Rates) -> Candidate:
    """KV-blind, in proportion to what experts demand.

    The demand is the fewest slots with which misses are as few as they get. Experts get all of it where the pageable
    bytes allow, and the pageable bytes otherwise; KV, which has no say, gets what is left, if only one block less
    than none. (The paper does not define its arm; this one is ours.)
    """
    misses = rates.expert_misses
    least = float(misses[-1]) + _NEGLIGIBLE * float(misses[0])
    demand = int((misses > least).sum())
    return _at(min(demand, int(max(0, budget.pageable_bytes) // budget.slot_bytes)), budget, rates)


def expert_first(budget: Budget, rates: Rates) -> Candidate:
    """The most slots that leave the admission floor.

    Raises:
        AdmissionFloorError: not even the floor fits.
    """
    if not budget.admissible_slots():
        raise AdmissionFloorError(budget.floor_bytes, budget.total_bytes)
    return _at(budget.admissible_slots()[-1], budget, rates)


def static_oracle(budget: Budget, rates: Rates) -> Candidate:
    """The best constant split for rates that were taken from the whole of the workload that is judged.

    Raises:
        AdmissionFloorError: not even the floor fits.
    """
    return split(budget, rates).choice


BASELINES: Mapping[str, Baseline] = {
    "half-and-half": half_and_half,
    "Flux-prop": flux_prop,
    "expert-first": expert_first,
    "static oracle": static_oracle,
}


def _at(slots: int, budget: Budget, rates: Rates) -> Candidate:
    check_rates(budget, rates)
    slots = min(slots, budget.most_slots)
    return rates.candidate(slots, budget.blocks_left(slots), is_admissible=slots in budget.admissible_slots())
