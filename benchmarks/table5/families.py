"""Which workflows there are: every recorded run under two budgets, and seven families of synthetic ones."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from record import RUNS, TRACES
from workflows import Locality, Phase, Talk, Workflow, recorded, synthetic

EACH = 8
"""Workflows of each synthetic family; their parameters are drawn from the family's ranges and stated in the results."""
TURNS = 160
RECORDED_SHARES = (0.35, 0.6)

Draw = np.random.Generator


def _locality(draw: Draw) -> Locality:
    return Locality(
        stay=round(float(draw.uniform(0.2, 0.7)), 2),
        zipf=round(float(draw.uniform(0.6, 1.6)), 2),
        topic=round(float(draw.uniform(0, 0.8)), 2),
    )


def _one_agent(draw: Draw) -> list[Phase]:
    """A conversation at a time, which grows to 16,000 or 32,000 tokens: KV needs the floor and no more."""
    limit = int(draw.choice([16_384, 32_768]))
    talk = Talk(1, 2048, 1024, int(draw.integers(200, 700)), int(draw.integers(32, 65)), limit)
    return [Phase(_locality(draw), talk, TURNS)]


def _few_chats(draw: Draw) -> list[Phase]:
    """Three to six conversations of up to 8,000 tokens, any of which goes on next."""
    count = int(draw.integers(3, 7))
    talk = Talk(count, int(draw.integers(1000, 4000)), 512, int(draw.integers(100, 500)), 48, 8192, 0.3)
    return [Phase(_locality(draw), talk, TURNS)]


def _many_documents(draw: Draw) -> list[Phase]:
    """Six to twelve conversations about documents of 4,000 to 12,000 tokens, some asked far more often."""
    count, first = int(draw.integers(6, 13)), int(draw.integers(4000, 12_000))
    talk = Talk(count, first, 512, 128, 48, 16_384, 0.2, round(float(draw.uniform(0.5, 1.5)), 2))
    return [Phase(_locality(draw), talk, TURNS)]


def _in_turn(draw: Draw) -> list[Phase]:
    """Three to eight agents strictly in turn: LRU keeps all of a length or none, a cliff."""
    count, first = int(draw.integers(3, 9)), int(draw.integers(2000, 6000))
    talk = Talk(count, first, 1024, int(draw.integers(200, 500)), 48, 10_240, skew=-1)
    return [Phase(_locality(draw), talk, TURNS)]


def _growing(draw: Draw) -> list[Phase]:
    """Agents in turn whose conversations live longer than the estimate lasts: they outgrow what it has seen."""
    count, first = int(draw.integers(3, 9)), int(draw.integers(2000, 8000))
    talk = Talk(count, first, 1024, int(draw.integers(100, 300)), 48, 16_384, skew=-1)
    return [Phase(_locality(draw), talk, TURNS)]


def _short_questions(draw: Draw) -> list[Phase]:
    """Questions that share long instructions and never come back."""
    shared, output = int(draw.integers(2000, 6000)), int(draw.integers(32, 65))
    first = shared + int(draw.integers(100, 500))
    talk = Talk(1, first, shared, 1, output, first + output)
    return [Phase(_locality(draw), talk, TURNS)]


def _shifting(draw: Draw) -> list[Phase]:
    """What is asked changes where the estimate ends: the second half is of another family, with other experts."""
    kinds = [_one_agent, _few_chats, _many_documents, _in_turn]
    first, second = draw.choice(len(kinds), 2, replace=False)
    (before,), (after,) = kinds[first](draw), kinds[second](draw)
    return [Phase(before.locality, before.talk, TURNS // 2), Phase(after.locality, after.talk, TURNS // 2)]


FAMILIES: dict[str, Callable[[Draw], list[Phase]]] = {
    "one agent": _one_agent,
    "few chats": _few_chats,
    "many documents": _many_documents,
    "in turn": _in_turn,
    "short questions": _short_questions,
    "growing": _growing,
    "shifting": _shifting,
}


UNLIKE = ("growing", "shifting")
"""Families whose second half is not like the first, so that no estimate on the first can know it."""


def makers(traces: Path = TRACES) -> Iterator[tuple[str, Callable[[], Workflow]]]:
    """Name and maker of every workflow; making one of the synthetic ones takes seconds."""
    for run, what in RUNS.items():
        for share in RECORDED_SHARES:
            name = f"{run} at {share:.0%}"
            yield (
                name,
                lambda run=run, what=what, share=share: recorded(
                    traces / f"{run}.npz", share, what.longest, what.sequences
                ),
            )
    for index, (family, phases_of) in enumerate(FAMILIES.items()):
        for number in range(EACH):
            seed = 100 * (index + 1) + number
            draw = np.random.default_rng(seed)
            phases, share = phases_of(draw), round(float(draw.uniform(0.25, 0.6)), 2)
            chunk = int(draw.choice([2048, 4096]))
            name = f"{family} {number + 1}"
            yield (
                name,
                lambda name=name, family=family, phases=phases, share=share, chunk=chunk, seed=seed: synthetic(
                    name, family, phases, share, chunk, seed
                ),
            )
