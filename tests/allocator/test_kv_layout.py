"""KV is cut into the blocks that vLLM would make."""

import pytest

from wisp.allocator.kv_layout import kv_layout
from wisp.errors import ConfigError


def test_a_block_of_a_plain_model_has_16_tokens(shape):
    layout = kv_layout(shape("qwen3-30b-a3b"))
    assert (layout.block_tokens, layout.block_bytes, layout.state_blocks) == (16, 16 * 96 * 2**10, 0)
    assert kv_layout(shape("qwen3-30b-a3b"), "fp8").block_bytes * 2 == layout.block_bytes


def test_the_floor_is_every_sequence_at_full_length_and_the_null_block(shape):
    layout = kv_layout(shape("qwen3-30b-a3b"))
    assert layout.floor_blocks(8192, 4) == 4 * 512 + 1
    assert layout.floor_blocks(8193, 4) == 4 * 513 + 1


def test_a_block_of_latent_kv_has_64_tokens(shape):
    layout = kv_layout(shape("deepseek-v3"))
    assert (layout.block_tokens, layout.block_bytes) == (64, 64 * 61 * 576 * 2)


def test_a_hybrid_has_blocks_as_long_as_a_state_and_blocks_for_states(shape):
    layout = kv_layout(shape("jamba-v0.1"))
    assert layout.block_tokens == 80  # 311,296 bytes of state over 4,096 bytes a token, in steps of 16
    assert layout.block_bytes == 4 * 80 * 4096  # groups of four layers: one of attention, seven of states
    assert layout.state_blocks == 7
    assert layout.floor_blocks(8192, 4) == 4 * (103 + 7) + 1
    assert layout.tokens(100, 4) == (100 - 28) * 80


def test_an_unknown_type_of_kv_is_refused(shape):
    with pytest.raises(ConfigError, match="auto or fp8"):
        kv_layout(shape("olmoe-1b-7b"), "int3")
