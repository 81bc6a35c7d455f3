"""Waves by token: for kernels that reduce over the choices of a token themselves.

Whole tokens whose experts fit into the slots together run in one kernel call. Exact wherever the kernel treats
rows independently; needs at least as many slots as a token has choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from wisp.errors import WorkingSetTooLargeError


@dataclass(frozen=True)
class TokenGroup:
    """Rows of a step that run together, and the experts that they need."""

    rows: tuple[int, ...]
    experts: tuple[int, ...]


def group_tokens(choices: Sequence[Sequence[int]], slots: int, resident: Sequence[int] = ()) -> list[TokenGroup]:
    """Split the rows of `choices` ([tokens, k] expert ids) into groups of at most `slots` distinct experts.

    Greedy, rows in order: each group takes every remaining row that still fits. The first group starts from the
    rows that the resident experts can serve, so that nothing is evicted before it was used.
    """
    masks = [_mask(row) for row in choices]
    widest = max((mask.bit_count() for mask in masks), default=0)
    if widest > slots:
        raise WorkingSetTooLargeError(widest, slots, why="one token")
    here = _mask(resident)
    left = sorted(range(len(masks)), key=lambda row: (masks[row] & ~here) != 0)
    groups = []
    while left:
        union, taken, rest = 0, [], []
        for row in left:
            if (union | masks[row]).bit_count() <= slots:
                union |= masks[row]
                taken.append(row)
            else:
                rest.append(row)
        groups.append(TokenGroup(tuple(sorted(taken)), _members(union)))
        left = rest
    return groups


def _mask(experts: Sequence[int]) -> int:
    mask = 0
    for expert in experts:
        mask |= 1 << expert
    return mask


def _members(mask: int) -> tuple[int, ...]:
    return tuple(expert for expert in range(mask.bit_length()) if mask >> expert & 1)
