"""What engines are asked in tests that compare them; see engines/vllm/run_engines.py for the requests."""

import random
from pathlib import Path
from typing import Any

BLOCK = 32
EAGER = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
"""Environment of quick runs: even with --enforce-eager vLLM compiles small functions of its own, for seconds each, and
tiny layers are faster on one thread."""


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
    args = {"block_size": BLOCK, **args}
    return {"model": str(model), "wisp": wisp, "args": args, "phases": make_phases(), "calls": []}


def make_crowded_request(model: Path, wisp: dict[str, Any] | None = None) -> dict[str, Any]:
    """Four requests that each outgrow a block together, where there are blocks for two to do so."""
    prompts = [[5 + index] * (BLOCK - 1) for index in range(4)]
    return {
        **make_request(model, wisp, num_gpu_blocks_override=7, max_model_len=3 * BLOCK),
        "phases": [{"prompts": prompts, "sampling": {"max_tokens": 12}}],
    }


def assert_identical(paged: dict[str, Any], stock: dict[str, Any]) -> None:
    """Also that the paged engine did page, and that both did the same work in the same order."""
    assert "error" not in paged, paged["error"]
    assert paged["counters"], "nothing was paged"
    assert not stock["counters"]
    assert paged["schedule"] == stock["schedule"]
    assert paged["phases"] == stock["phases"]


POLICIES = ("lfru", "least_stale", "fifo")
SLOTS = (4, 9, 15, 16)
"""Of 16 experts, of which a token takes 4."""
