"""What a soak has seen: filled by its clients and by those who watch the server meanwhile."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """What happened so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    answer_tokens: int = 0
    errors: list[str] = field(default_factory=list)
    not_sensible: list[str] = field(default_factory=list)
    memory: list[tuple[float, float, float]] = field(default_factory=list)
    """Seconds since the load began, MiB of the front end, MiB of the engine's processes."""
    device_memory: list[tuple[float, float, float]] = field(default_factory=list)
    """Seconds since the load began, MiB that the workers' allocators have given out, MiB that they hold of the GPU."""
    decided_on: set[str | None] = field(default_factory=set)
    integrity: list[dict[str, Any]] = field(default_factory=list)
