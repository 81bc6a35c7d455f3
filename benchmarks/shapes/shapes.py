"""The shapes that are run: whose configuration, at how many slots, on which kernel."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parent / "configs"


@dataclass(frozen=True)
class Shape:
    """One model at one number of slots."""

    format: str
    expert_slots: int
    batches: tuple[int, ...] = (1, 4, 8)
    layers: int | None = None
    """Of the model's; None for all of them."""
    moe_backend: str | None = None


SHAPES: Mapping[str, Shape] = {
    "olmoe-1b-7b": Shape("bf16", expert_slots=16),
    "mixtral-8x7b": Shape("bf16", expert_slots=3, batches=(1, 4)),
    "gpt-oss-20b": Shape("mxfp4", expert_slots=12, moe_backend="marlin"),
    "deepseek-v2-lite": Shape("bf16", expert_slots=20),
    "minimax-m2": Shape("fp8 blocks", expert_slots=64, layers=16, moe_backend="triton"),
}
"""By the name of a file in `configs`. All of Mixtral is 84 GiB of host memory; the 16 layers of MiniMax-M2 are 54."""

_TINY: Mapping[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
}


def configuration(model: str, layers: int | None, *, tiny: bool) -> dict[str, Any]:
    """The model's configuration with fewer layers; `tiny` shrinks it to what a CPU serves."""
    config: dict[str, Any] = json.loads((CONFIGS / f"{model}.json").read_text())
    if layers is not None:
        config["num_hidden_layers"] = layers
    if tiny:
        config |= {key: value for key, value in _TINY.items() if key in config}
        config["num_hidden_layers"] = 2
    return config


def moe_layers(config: Mapping[str, Any]) -> int:
    """The layers with experts."""
    return int(config["num_hidden_layers"]) - int(config.get("first_k_dense_replace", 0))


def experts(config: Mapping[str, Any]) -> int:
    """The routed experts of a layer."""
    return next(int(config[key]) for key in ("num_experts", "num_local_experts", "n_routed_experts") if key in config)
