"""Layers with experts are those that vLLM's models of these configurations give some."""

import pytest

from wisp.allocator import model_shape
from wisp.allocator.expert_layers import expert_layers


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({}, range(8)),
        ({"first_k_dense_replace": 3}, range(3, 8)),
        ({"num_dense_layers": 2, "first_k_dense_replace": None}, range(2, 8)),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, [1, 5, 7]),
        ({"interleave_moe_layer_step": 4}, [3, 7]),
        ({"expert_layer_period": 2, "expert_layer_offset": 1}, [1, 3, 5, 7]),
        ({"expert_layer_period": 3}, [0, 3, 6]),
        ({"moe_layer_freq": 2, "first_k_dense_replace": 1}, [2, 4, 6]),
        ({"moe_layer_freq": [0, 1, 1]}, [1, 2]),
        ({"layers_block_type": ["mamba", "moe", "attention", "moe"] * 2}, [1, 3, 5, 7]),
        ({"layers_block_type": ["mamba", "attention"] * 4}, range(8)),
    ],
)
def test_the_layers_with_experts(keys, found):
    assert expert_layers(keys.get, 8) == list(found)


def test_a_plan_counts_them_too(config):
    qwen = config("qwen3-30b-a3b")
    assert model_shape({**qwen, "num_dense_layers": 3}).moe_layers == 45
    assert model_shape({**qwen, "interleave_moe_layer_step": 2}).moe_layers == 24
