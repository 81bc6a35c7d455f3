"""What the engines under comparison are asked, and before which of their steps each request arrives.

vLLM's bits depend on how requests are batched and on which prefixes hit, so "identical" is claimed, and checked,
for one schedule: the same requests before the same steps.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wisp.errors import ConfigError


@dataclass(frozen=True)
class Arrival:
    """One request. Exactly one of `text` and `token_ids` is the prompt."""

    step: int
    """It arrives before the engine's step of this number (from 0), or at once if the engine is idle."""
    max_tokens: int
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    ignore_eos: bool = True
    logprobs: int = 20
    stop_token_ids: tuple[int, ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True)
class Workload:
    """Arrivals in the order of their steps."""

    arrivals: tuple[Arrival, ...]

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps([asdict(arrival) for arrival in self.arrivals]))

    @classmethod
    def load(cls, path: Path) -> "Workload":
        """Read what `save` wrote."""
        return cls(tuple(Arrival(**_tuples(fields)) for fields in json.loads(path.read_text())))


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


WHEN_IDLE = 1 << 30
"""A step that is never reached: the request arrives once all before it are answered."""

TEXTS = (
    "def read_lines(path):\n    ",
    "It was late in the autumn, and the road to the harbour was",
    "NAME\n       ls - list directory contents\n\nSYNOPSIS\n",
    "class Stack:\n    def push(self, item):\n",
    "The committee asked three questions. First,",
    "for f in *.txt; do\n",
    "1, 1, 2, 3, 5, 8,",
    "Once",
)
"""Short prompts of different kinds, so that steps route widely."""

PREFIX = (
    "The following notes were taken during a long journey along the coast. They describe the weather, the people "
    "met on the way, the state of the roads and the price of bread, in the order in which they were written down. "
)
"""Repeated, it gives prompts longer than a chunk of prefill, and a prefix that later requests share."""


def standard_workload(prompts: Sequence[str] = TEXTS, *, max_tokens: int = 32) -> Workload:
    """Batched and late requests, chunked prefill, and requests that share the prefix of finished ones."""
    if not prompts:
        raise ConfigError("no prompt to compare on; give a file with one prompt a line, or none for the built-in ones")
    together = [Arrival(step=0, text=text, max_tokens=max_tokens) for text in prompts]
    late = [
        Arrival(step=5 + 3 * i, text=PREFIX * (3 + i) + text, max_tokens=max_tokens)
        for i, text in enumerate(prompts[:3])
    ]
    sharing = [Arrival(step=WHEN_IDLE, text=PREFIX * 5 + text, max_tokens=max_tokens) for text in prompts[:3]]
    return Workload((*together, *late, *sharing))
