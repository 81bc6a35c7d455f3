"""What stands beside the experts in a layer and mixes tokens: attention or a state space, its weights and caches.

Weights are lists of [outputs, inputs] matrices, so that any weight format can be applied. Sources: the models' own
code for the matrices; vLLM 0.32 for what is cached (`MLAAttentionSpec`, `MambaStateShapeCalculator`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Matrix = tuple[int, int]
"""Outputs, inputs."""


@dataclass(frozen=True)
class Attention:
    """One attention layer."""

    matrices: tuple[Matrix, ...]
    unpacked_matrices: tuple[Matrix, ...]
    """What the engine keeps beside them in 16 bits: MLA's up-projections, split to be absorbed into the query."""
    kv_values_a_token: int
    is_latent: bool


@dataclass(frozen=True)
class StateSpace:
    """One Mamba layer."""

    matrices: tuple[Matrix, ...]
    plain_parameters: int
    """Parameters that no format packs: convolution, A, D."""
    state_values: int
    """Values that the engine keeps for each running sequence, whatever its length."""


def attention_of(config: Mapping[str, Any]) -> Attention:
    """The attention of a text configuration: latent (MLA) if it has a `kv_lora_rank`, grouped heads otherwise."""
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    if config.get("kv_lora_rank"):
        return _latent(config, hidden, heads)
    head = int(config.get("head_dim") or hidden // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    query, key = heads * head, kv_heads * head
    return Attention(((query, hidden), (key, hidden), (key, hidden), (hidden, query)), (), 2 * key, False)


def state_space_of(config: Mapping[str, Any]) -> StateSpace:
    """The Mamba (version 1) layer of a Jamba configuration."""
    hidden = int(config["hidden_size"])
    inner = int(config.get("mamba_expand", 2)) * hidden
    state, kernel = int(config.get("mamba_d_state", 16)), int(config.get("mamba_d_conv", 4))
    rank = config.get("mamba_dt_rank", "auto")
    rank = -(-hidden // 16) if rank == "auto" else int(rank)
    return StateSpace(
        matrices=((2 * inner, hidden), (rank + 2 * state, inner), (inner, rank), (hidden, inner)),
        plain_parameters=inner * (kernel + 1) + inner * state + 2 * inner,
        state_values=inner * (kernel - 1) + inner * state,
    )


def _latent(config: Mapping[str, Any], hidden: int, heads: int) -> Attention:
    latent, rope = int(config["kv_lora_rank"]), int(config["qk_rope_head_dim"])
    plain, value = int(config["qk_nope_head_dim"]), int(config["v_head_dim"])
    query = heads * (plain + rope)
    rank = config.get("q_lora_rank")
    queries: tuple[Matrix, ...] = ((int(rank), hidden), (query, int(rank))) if rank else ((query, hidden),)
    up = (heads * (plain + value), latent)
    matrices = (*queries, (latent + rope, hidden), up, (hidden, heads * value))
    return Attention(matrices, (up,), latent + rope, True)
