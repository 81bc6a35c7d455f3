"""A process of its own for an engine: its environment, its flags where the user is silent, its last words."""

import os
from collections.abc import Sequence
from pathlib import Path

ENGINE_FLAGS = {
    "--max-model-len": "2048",
    "--max-num-batched-tokens": "256",
    "--max-num-seqs": "8",
    "--num-gpu-blocks-override": "1024",
    "--seed": "0",
}
"""Chunks smaller than the longest prompts, and the same KV pool in engines that are compared, since a different number
of blocks would be a different schedule."""

CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1"}
"""GiB that vLLM's CPU backend plans for KV; without it, nine tenths of the machine's memory, twice over when two
engines run. The number of blocks is set above. A GPU ignores it."""

_LAST_LINES = 15


def environment(**more: str) -> dict[str, str]:
    """This process's own, and `more`; what it says of KV on a CPU counts."""
    return {**CPU_ENVIRONMENT, **os.environ, **more}


def engine_flags(user: Sequence[str]) -> tuple[str, ...]:
    """The user's flags for vLLM, and ours where they are silent."""
    named = {flag.split("=")[0] for flag in user if flag.startswith("--")}
    ours = [part for flag, value in ENGINE_FLAGS.items() if flag not in named for part in (flag, value)]
    return (*ours, *user)


def last_words(log: Path) -> str:
    """The end of what the process has said, for an error."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
