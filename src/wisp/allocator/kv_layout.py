"""How the engine cuts the KV memory of a model into blocks (vLLM 0.32)."""

from dataclasses import dataclass

from wisp.allocator.model_shape import ModelShape
from wisp.errors import ConfigError

KV_DTYPES = {"auto": 2, "fp8": 1}
"""Bytes of a value by `--kv-cache-dtype`."""

NULL_BLOCKS = 1
"""vLLM keeps one block that nobody can have."""

_BLOCK_TOKENS, _LATENT_BLOCK_TOKENS = 16, 64
"""vLLM's block without and with latent KV (MLA) on NVIDIA GPUs."""
_ATTENTION_ALIGNMENT = 16
_PADS_FROM = 1.5


@dataclass(frozen=True)
class KvLayout:
    """All layers share one pool of equal blocks."""

    block_tokens: int
    block_bytes: int
    state_blocks: int = 0
    """Blocks that each running sequence takes for the states of a hybrid, whatever its length."""

    def sequence_blocks(self, tokens: int) -> int:
        """Blocks of one running sequence of so many tokens."""
        return -(-tokens // self.block_tokens) + self.state_blocks

    def floor_blocks(self, tokens: int, sequences: int) -> int:
        """The admission floor kappa_min: `sequences` sequences of `tokens` tokens at once, and the null block."""
        return sequences * self.sequence_blocks(tokens) + NULL_BLOCKS

    def tokens(self, blocks: int, sequences: int) -> int:
        """The KV tokens in so many blocks, once `sequences` running sequences have their states.

        Like vLLM's own "GPU KV cache size" it counts the null block.
        """
        return max(0, blocks - sequences * self.state_blocks) * self.block_tokens


def kv_layout(shape: ModelShape, kv_dtype: str = "auto") -> KvLayout:
    """The layout of a model's KV in 16 bits (`auto`) or in 8 (`fp8`).

    In a hybrid, vLLM makes attention blocks as long as one layer's state, puts as many layers into a group as the
    rarer kind has, and gives each group its own blocks.

    Raises:
        ConfigError: an unknown type of KV.
    """
    if kv_dtype not in KV_DTYPES:
        raise ConfigError(f"--kv-cache-dtype takes {' or '.join(KV_DTYPES)} here, not {kv_dtype!r}")
    value_bytes = KV_DTYPES[kv_dtype]
    if not shape.state_layers:
        tokens = _LATENT_BLOCK_TOKENS if shape.has_latent_kv else _BLOCK_TOKENS
        return KvLayout(tokens, tokens * shape.kv_bytes_a_token(value_bytes))
    token_bytes = shape.kv_values_a_token * value_bytes
    tokens = _ATTENTION_ALIGNMENT * -(-shape.state_bytes // (_ATTENTION_ALIGNMENT * token_bytes))
    few, many = sorted((shape.attention_layers, shape.state_layers))
    group = many if many < _PADS_FROM * few else few
    attention_groups, state_groups = -(-shape.attention_layers // group), -(-shape.state_layers // group)
    if attention_groups != 1:
        raise ConfigError(
            f"{shape.model_type} has more attention layers ({shape.attention_layers}) than state-space layers "
            f"({shape.state_layers}), a layout that wisp plan does not know; set the split by hand"
        )
    return KvLayout(tokens, group * tokens * token_bytes, state_groups)
