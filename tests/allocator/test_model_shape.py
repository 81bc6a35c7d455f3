"""Sizes from a config.json are those that the models' authors publish."""

import json
from pathlib import Path

import pytest

from wisp.allocator import model_shape, read_model_shape
from wisp.allocator.weight_format import quantised_format
from wisp.errors import CheckpointError, UnsupportedError

GIB, MIB, KIB = 2**30, 2**20, 2**10
SHAPES = Path(__file__).parents[2] / "benchmarks" / "shapes"
TINY = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("name", "parameters", "moe_layers", "experts", "top_k"),
    [
        ("qwen3-30b-a3b", 30.5e9, 48, 128, 8),
        ("olmoe-1b-7b", 6.92e9, 16, 64, 8),
        ("mixtral-8x7b", 46.7e9, 32, 8, 2),
        ("deepseek-v2", 236e9, 59, 160, 6),
        ("deepseek-v3", 671e9, 58, 256, 8),
        ("minimax-m2", 229e9, 62, 256, 8),
        ("jamba-v0.1", 51.6e9, 16, 16, 2),
        ("kimi-vl-a3b", 16.4e9, 26, 64, 6),
    ],
)
def test_parameters_are_the_published_ones(shape, name, parameters, moe_layers, experts, top_k):
    found = shape(name)
    assert found.parameters == pytest.approx(parameters, rel=0.005)
    assert (found.moe_layers, found.num_experts, found.top_k) == (moe_layers, experts, top_k)
    assert found.notes == ()


def test_qwen3_30b_a3b_has_the_papers_sizes(shape):
    qwen = shape("qwen3-30b-a3b")
    assert qwen.expert_bytes == 9 * MIB
    assert qwen.slot_bytes == 432 * MIB
    assert qwen.kv_bytes_a_token() == 96 * KIB
    assert qwen.slot_bytes // qwen.kv_bytes_a_token() == 4608
    assert qwen.total_weight_bytes / GIB == pytest.approx(57, abs=0.2)


def test_sizes_of_other_models(shape):
    assert shape("olmoe-1b-7b").slot_bytes == 192 * MIB
    assert shape("mixtral-8x7b").total_weight_bytes / GIB == pytest.approx(87, abs=0.1)
    minimax = shape("minimax-m2")
    assert 32 * minimax.slot_bytes / GIB == pytest.approx(26.2, abs=0.1)
    assert shape("kimi-vl-a3b").weight_bytes["vision"] / GIB == pytest.approx(0.77, abs=0.01)


def test_block_scales_of_fp8_are_counted(shape):
    minimax = shape("minimax-m2")
    assert minimax.expert_bytes == 3 * (1536 * 3072 + 4 * 12 * 24)
    assert minimax.expert_format.name == "FP8, 128 x 128 block scales"
    assert minimax.weight_bytes["output embeddings"] == 200064 * 3072 * 2


def test_latent_attention_keeps_one_vector_a_token(shape):
    deepseek = shape("deepseek-v3")
    assert deepseek.has_latent_kv
    assert deepseek.kv_bytes_a_token() == 61 * (512 + 64) * 2


def test_a_hybrid_keeps_kv_in_its_attention_layers_and_a_state_in_the_others(shape):
    jamba = shape("jamba-v0.1")
    assert (jamba.attention_layers, jamba.state_layers) == (4, 28)
    assert jamba.kv_bytes_a_token() == 4 * 2 * 8 * 128 * 2
    assert jamba.state_bytes == 8192 * (16 + 3) * 2


@pytest.mark.parametrize(
    ("more", "moe_layers"),
    [
        ({"mlp_only_layers": [0, 3]}, 2),
        ({"decoder_sparse_step": 2}, 2),
        ({"first_k_dense_replace": 3}, 1),
        ({"moe_layer_freq": [0, 1, 1, 1]}, 3),
    ],
)
def test_dense_layers_are_told_apart(more, moe_layers):
    found = model_shape({**TINY, **more})
    assert found.moe_layers == moe_layers
    assert found.weight_bytes["dense layers"] == (4 - moe_layers) * 3 * 64 * 96 * 2


def test_int4_groups_have_a_scale_and_a_zero_point():
    gptq = model_shape({**TINY, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}})
    weights, groups = 3 * 64 * 32, 2 * 32 * 2 + 64
    assert gptq.expert_bytes == weights // 2 + groups * 20 // 8
    packed = {"num_bits": 4, "group_size": 32, "type": "int"}
    tensors = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": packed}}}
    assert model_shape({**TINY, "quantization_config": tensors}).expert_bytes == weights // 2 + groups * 16 // 8


@pytest.mark.parametrize(
    ("quantisation", "name", "weights_a_scale"),
    [
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}},
            },
            "MXFP4, groups of 32",
            32,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
            },
            "NVFP4, groups of 16",
            16,
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4, groups of 16", 16),
    ],
)
def test_four_bit_floats_have_a_byte_of_scale_a_group(quantisation, name, weights_a_scale):
    shape = model_shape({**TINY, "quantization_config": quantisation})
    weights = 3 * 64 * 32
    assert shape.expert_format.name == name
    assert shape.expert_bytes == weights // 2 + weights // weights_a_scale


def test_an_expert_of_gpt_oss_has_the_bytes_that_an_engine_has_moved():
    """By the first row that `benchmarks/shapes` measured: bytes moved a step, and the faults that moved them."""
    found = read_model_shape(SHAPES / "configs" / "gpt-oss-20b.json")
    row = json.loads((SHAPES / "results.json").read_text())["gpt-oss-20b"]["rows"][0]
    assert row["batch"] == 1
    faults = found.moe_layers * found.top_k * (1 - row["hit_ratio"])
    assert found.expert_bytes == pytest.approx(row["moved_gib_a_step"] * GIB / faults, rel=1e-9)


@pytest.mark.parametrize(("hidden", "width"), [(2880, 2880), (64, 32), (256, 128), (4096, 1408), (5120, 1)])
def test_mxfp4_experts_are_padded_as_vllm_pads_them(hidden, width):
    mxfp4 = pytest.importorskip("vllm.model_executor.layers.fused_moe.oracle.mxfp4")
    padded = mxfp4.mxfp4_round_up_hidden_size_and_intermediate_size(mxfp4.Mxfp4MoeBackend.MARLIN, hidden, width)
    assert quantised_format({"quant_method": "mxfp4"}).padded(hidden, width) == padded
    sizes = {"hidden_size": hidden, "moe_intermediate_size": width, "quantization_config": {"quant_method": "mxfp4"}}
    weights = 3 * padded[0] * padded[1]
    assert model_shape({**TINY, **sizes}).expert_bytes == weights // 2 + weights // 32


@pytest.mark.parametrize(
    ("quantisation", "name", "scales"),
    [
        ({"quant_method": "modelopt", "quant_algo": "fp8"}, "FP8", 0),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "MXFP8, groups of 32", 3 * 64),
        ({"quant_method": "mxfp8"}, "MXFP8, groups of 32", 3 * 64),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "group_size": 32}}},
            },
            "MXFP8, groups of 32",
            3 * 64,
        ),
    ],
)
def test_eight_bit_floats_have_a_byte_of_scale_a_group_if_they_have_groups(quantisation, name, scales):
    shape = model_shape({**TINY, "quantization_config": quantisation})
    assert (shape.expert_format.name, shape.expert_bytes) == (name, 3 * 64 * 32 + scales)


def test_modules_that_are_not_converted_stay_in_16_bits():
    fp8 = {"quant_method": "fp8"}
    all_fp8 = model_shape({**TINY, "quantization_config": fp8})
    kept = model_shape({**TINY, "quantization_config": {**fp8, "modules_to_not_convert": ["self_attn"]}})
    assert kept.weight_bytes["attention"] == 2 * all_fp8.weight_bytes["attention"]
    assert kept.expert_bytes == all_fp8.expert_bytes == 3 * 64 * 32


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"num_experts": 0}, "no routed experts"),
        ({"quantization_config": {"quant_method": "hqq"}}, "hqq quantisation"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}}, "modelopt quant"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "neither full attention"),
        ({"mamba_d_state": 16}, "neither full attention"),
        ({"torch_dtype": "int7"}, "int7"),
    ],
)
def test_what_would_be_a_guess_is_refused(more, told):
    with pytest.raises(UnsupportedError, match=told):
        model_shape({**TINY, **more})


def test_an_unchecked_type_is_read_with_a_note():
    assert "never checked" in model_shape({**TINY, "model_type": "new_moe"}).notes[0]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "cannot be read"),
        ("[]", "no JSON object"),
        (json.dumps({key: value for key, value in TINY.items() if key != "vocab_size"}), "lacks 'vocab_size'"),
        (json.dumps({**TINY, "hidden_size": "wide"}), "makes no sense"),
        (json.dumps({**TINY, "hidden_size": -64}), "makes no sense .experts of -64"),
        (json.dumps({**TINY, "num_experts_per_tok": 0}), "makes no sense .top-0 of"),
        (json.dumps({**TINY, "num_experts_per_tok": 200}), "makes no sense .top-200 of"),
        (json.dumps({**TINY, "quantization_config": "fp8"}), "makes no sense"),
        (json.dumps({**TINY, "max_position_embeddings": "long"}), "makes no sense"),
    ],
)
def test_a_broken_configuration_is_told(tmp_path, content, told):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=told):
        read_model_shape(tmp_path)


def test_a_folder_and_its_file_are_the_same_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    assert read_model_shape(tmp_path) == read_model_shape(tmp_path / "config.json") == model_shape(TINY)
    with pytest.raises(CheckpointError, match="there is no"):
        read_model_shape(tmp_path / "elsewhere")
