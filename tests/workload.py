"""What engines are asked in tests that compare them; see engines/vllm/run_engines.py for the requests."""

import random
from pathlib import Path
from typing import Any

BLOCK = 32
EAGER = {"TORCHDYNAMO_DISABLE": "1"}
"""Even with --enforce-eager vLLM compiles small functions of its own, for seconds each."""


def make_phases() -> list[dict[str, Any]]:
    """Batches, prompts longer than a step may be, prefixes shared within a batch and with an earlier one, sampling."""
    draw = random.Random(0)

    def words(count: int) -> list[int]:
        return [draw.randrange(5, 500) for _ in range(count)]

    prefix = words(2 * BLOCK + 10)
    return [
        {"prompts": [words(count) for count in (3, 17, 150, 64, 1, 9)], "sampling": {}},
        {"prompts": [prefix + words(5), prefix + words(9)], "sampling": {}},
        {"prompts": [prefix + words(7), prefix + words(5), words(20)], "sampling": {"temperature": 1.0, "seed": 7}},
    ]


def make_request(model: Path, wisp: dict[str, Any] | None = None, **args: Any) -> dict[str, Any]:
    """An engine with this `wisp` configuration (None: stock vLLM), to run all of `make_phases`."""
    return {"model": str(model), "wisp": wisp, "args": {"block_size": BLOCK, **args}, "phases": make_phases()}


POLICIES = ("lfru", "least_stale", "fifo")
SLOTS = (4, 9, 15, 16)
"""Of 16 experts, of which a token takes 4."""
