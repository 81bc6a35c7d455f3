"""Tiny checkpoints whose experts are quantised in the formats people use, with random but finite weights.

Only the experts are quantised. Their numbers are drawn in the quantised format itself, so that nothing here has to
know how to quantise: every bit pattern of an integer or a 4-bit float is a number.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCABULARY, HIDDEN, INNER, EXPERTS, TOP_K, LAYERS, HEADS, HEAD = 512, 256, 256, 16, 4, 2, 4, 64
GROUP, BLOCK, MX_GROUP, NV_GROUP = 128, 128, 32, 16
"""Values that share a scale: in int4, in FP8 by blocks (each way), in MXFP4, in NVFP4."""
SPREAD = 0.1
"""Standard deviation of the weights: so much that another expert makes other logits."""

Tensors = dict[str, torch.Tensor]
Projection = Callable[[int, int, torch.Generator], Tensors]
"""From outputs, inputs and a generator: the tensors of one projection of one expert, by the ends of their names."""

PLAIN_LAYERS = ["re:.*self_attn.*", "re:.*mlp.gate$", "lm_head"]


def write(path: Path, name: str) -> Path:
    """Write the checkpoint of this name, the same at every call."""
    method, projection = FORMATS[name]
    random = torch.Generator().manual_seed(0)
    if name in GPT_OSS:
        config, tensors = _gpt_oss_config(), dict(_gpt_oss(random, quantised=method is not None))
    else:
        assert projection is not None
        config, tensors = _qwen_config(), dict(_qwen(projection, random))
    config |= {"quantization_config": method} if method else {}
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config, indent=2))
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def _normal(*shape: int, random: torch.Generator, spread: float = SPREAD) -> torch.Tensor:
    return (torch.randn(shape, generator=random) * spread).to(torch.bfloat16)


def _bytes(*shape: int, random: torch.Generator, low: int = 0, high: int = 256) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=random, dtype=torch.uint8)


def _words(*shape: int, random: torch.Generator) -> torch.Tensor:
    return _bytes(*shape, 4, random=random).view(torch.int32).squeeze(-1)


def _around(*shape: int, random: torch.Generator, value: float) -> torch.Tensor:
    """Between half and one and a half of `value`, float32."""
    return (torch.rand(shape, generator=random) + 0.5) * value


def _plain(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    return {"weight": _normal(outputs, inputs, random=random)}


def _fp8(outputs: int, inputs: int, random: torch.Generator) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=random).to(torch.float8_e4m3fn)


def _fp8_block(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    scale = _around(-(-outputs // BLOCK), -(-inputs // BLOCK), random=random, value=SPREAD)
    return {"weight": _fp8(outputs, inputs, random), "weight_scale_inv": scale}


def _fp8_tensor(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    return {"weight": _fp8(outputs, inputs, random), "weight_scale": _around(random=random, value=SPREAD)}


def _fp8_static(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    # gate and up see the same input, so the scale of the input is a property of the layer
    return {**_fp8_tensor(outputs, inputs, random), "input_scale": torch.tensor(0.02)}


def _fp8_channel(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    return {"weight": _fp8(outputs, inputs, random), "weight_scale": _around(outputs, 1, random=random, value=SPREAD)}


def _int4_scales(*shape: int, random: torch.Generator) -> torch.Tensor:
    return _around(*shape, random=random, value=SPREAD / 4.6).to(torch.bfloat16)  # 4.6: the spread of -8 .. 7


def _gptq(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    groups = inputs // GROUP
    return {
        "qweight": _words(inputs // 8, outputs, random=random),
        "scales": _int4_scales(groups, outputs, random=random),
        "qzeros": torch.full((groups, outputs // 8), 0x77777777, dtype=torch.int32),  # 8, less one, in each
        "g_idx": torch.arange(inputs, dtype=torch.int32) // GROUP,
    }


def _awq(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    groups = inputs // GROUP
    return {
        "qweight": _words(inputs, outputs // 8, random=random),
        "scales": _int4_scales(groups, outputs, random=random),
        "qzeros": _words(groups, outputs // 8, random=random),
    }


def _int4_packed(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    return {
        "weight_packed": _words(outputs, inputs // 8, random=random),
        "weight_scale": _int4_scales(outputs, inputs // GROUP, random=random),
        "weight_shape": torch.tensor([outputs, inputs]),
    }


def _int4_asymmetric(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    zeros = _words(outputs // 8, inputs // GROUP, random=random)
    return {**_int4_packed(outputs, inputs, random), "weight_zero_point": zeros}


def _mxfp4(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    return {
        "weight": _bytes(outputs, inputs // 2, random=random),
        "weight_scale": _mx_scales(outputs, inputs // MX_GROUP, random=random),
    }


def _mx_scales(*shape: int, random: torch.Generator) -> torch.Tensor:
    return _bytes(*shape, random=random, low=120, high=123)  # 2 to the power of -7 .. -5; 4-bit floats spread by 2.9


def _nvfp4(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    return {
        "weight_packed": _bytes(outputs, inputs // 2, random=random),
        "weight_scale": _around(outputs, inputs // NV_GROUP, random=random, value=100.0).to(torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor([100.0 * 2.9 / SPREAD]),
        "input_global_scale": torch.tensor([100.0]),
    }


def _qwen(projection: Projection, random: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    yield from _body(random)
    for layer in range(LAYERS):
        start = f"model.layers.{layer}."
        yield start + "mlp.gate.weight", _normal(EXPERTS, HIDDEN, random=random, spread=1.0)
        for which in ("q_norm", "k_norm"):
            yield f"{start}self_attn.{which}.weight", torch.ones(HEAD, dtype=torch.bfloat16)
        for expert in range(EXPERTS):
            for name, outputs, inputs in (
                ("gate_proj", INNER, HIDDEN),
                ("up_proj", INNER, HIDDEN),
                ("down_proj", HIDDEN, INNER),
            ):
                for end, tensor in projection(outputs, inputs, random).items():
                    yield f"{start}mlp.experts.{expert}.{name}.{end}", tensor


def _gpt_oss(random: torch.Generator, *, quantised: bool) -> Iterator[tuple[str, torch.Tensor]]:
    yield from _body(random)
    for layer in range(LAYERS):
        start = f"model.layers.{layer}."
        yield start + "mlp.router.weight", _normal(EXPERTS, HIDDEN, random=random, spread=1.0)
        yield start + "mlp.router.bias", _normal(EXPERTS, random=random)
        yield start + "self_attn.sinks", _normal(HEADS, random=random)
        for which in ("q_proj", "k_proj", "v_proj"):
            yield f"{start}self_attn.{which}.bias", _normal(HEADS * HEAD, random=random)
        yield start + "self_attn.o_proj.bias", _normal(HIDDEN, random=random)
        for name, outputs, inputs in (("gate_up_proj", 2 * INNER, HIDDEN), ("down_proj", HIDDEN, INNER)):
            experts, groups = f"{start}mlp.experts.{name}", inputs // MX_GROUP
            if quantised:
                yield f"{experts}_blocks", _bytes(EXPERTS, outputs, groups, MX_GROUP // 2, random=random)
                yield f"{experts}_scales", _mx_scales(EXPERTS, outputs, groups, random=random)
            else:
                yield experts, _normal(EXPERTS, inputs, outputs, random=random)
            yield f"{experts}_bias", _normal(EXPERTS, outputs, random=random, spread=0.5)


def _body(random: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    """What both kinds of model have beside experts."""
    yield "model.embed_tokens.weight", _normal(VOCABULARY, HIDDEN, random=random, spread=1.0)
    yield "lm_head.weight", _normal(VOCABULARY, HIDDEN, random=random)
    yield "model.norm.weight", torch.ones(HIDDEN, dtype=torch.bfloat16)
    for layer in range(LAYERS):
        start = f"model.layers.{layer}."
        for which in ("q_proj", "k_proj", "v_proj"):
            yield f"{start}self_attn.{which}.weight", _normal(HEADS * HEAD, HIDDEN, random=random)
        yield start + "self_attn.o_proj.weight", _normal(HIDDEN, HEADS * HEAD, random=random)
        for which in ("input_layernorm", "post_attention_layernorm"):
            yield f"{start}{which}.weight", torch.ones(HIDDEN, dtype=torch.bfloat16)


_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD,
    "num_experts_per_tok": TOP_K,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _qwen_config() -> dict[str, Any]:
    return {
        **_COMMON,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": EXPERTS,
        "moe_intermediate_size": INNER,
        "intermediate_size": INNER,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "hidden_act": "silu",
    }


def _gpt_oss_config() -> dict[str, Any]:
    return {
        **_COMMON,
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_local_experts": EXPERTS,
        "intermediate_size": INNER,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 128,
        "attention_bias": True,
        "hidden_act": "silu",
        "swiglu_limit": 7.0,
        "rope_theta": 10000.0,
    }


def _compressed_tensors(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {**group, "format": form}},
        "ignore": PLAIN_LAYERS,
    }


def _numbers(kind: str, bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "num_bits": bits, "strategy": strategy, "symmetric": True, "dynamic": False, **more}


_FP8: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "ignored_layers": [
        f"model.layers.{layer}.self_attn.{name}"
        for layer in range(LAYERS)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj")
    ]
    + [f"model.layers.{layer}.mlp.gate" for layer in range(LAYERS)],
}

FORMATS: dict[str, tuple[dict[str, Any] | None, Projection | None]] = {
    "bf16": (None, _plain),
    "fp8_block": ({**_FP8, "weight_block_size": [BLOCK, BLOCK]}, _fp8_block),
    "fp8_tensor": (_FP8, _fp8_tensor),
    "fp8_static": ({**_FP8, "activation_scheme": "static"}, _fp8_static),
    "ct_fp8_static": (
        _compressed_tensors("float-quantized", _numbers("float", 8, "tensor"), _numbers("float", 8, "tensor")),
        _fp8_static,
    ),
    "ct_fp8_channel": (
        _compressed_tensors(
            "float-quantized", _numbers("float", 8, "channel"), _numbers("float", 8, "token", dynamic=True)
        ),
        _fp8_channel,
    ),
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True, "lm_head": False},
        _gptq,
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
        _awq,
    ),
    "ct_int4": (_compressed_tensors("pack-quantized", _numbers("int", 4, "group", group_size=GROUP)), _int4_packed),
    "ct_int4_zeros": (
        _compressed_tensors("pack-quantized", _numbers("int", 4, "group", group_size=GROUP) | {"symmetric": False}),
        _int4_asymmetric,
    ),
    "mxfp4": ({"quant_method": "mxfp4"}, _mxfp4),
    "gpt_oss_mxfp4": ({"quant_method": "mxfp4"}, None),
    "gpt_oss_bf16": (None, None),
    "ct_nvfp4": (
        _compressed_tensors(
            "nvfp4-pack-quantized",
            _numbers("float", 4, "tensor_group", group_size=NV_GROUP),
            _numbers("float", 4, "tensor_group", group_size=NV_GROUP, dynamic="local"),
        ),
        _nvfp4,
    ),
}
"""Name -> (the `quantization_config`, how one projection of one expert is drawn)."""

GPT_OSS = ("gpt_oss_mxfp4", "gpt_oss_bf16")
"""Those whose experts have biases, with all of a layer's experts in one tensor."""
