"""Tiny checkpoints whose experts are quantised in the formats people use, with random but finite weights.

Only the experts are quantised.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from projections import MX_GROUP, Projection, mx_scales, normal, octets
from quantisations import FORMATS, LAYERS
from safetensors.torch import save_file

VOCABULARY, HIDDEN, INNER, EXPERTS, TOP_K, HEADS, HEAD = 512, 256, 256, 16, 4, 4, 64
GPT_OSS = ("gpt_oss_mxfp4", "gpt_oss_bf16")
"""Those whose experts have biases, with all of a layer's experts in one tensor."""


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


def _qwen(projection: Projection, random: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    yield from _body(random)
    for layer in range(LAYERS):
        start = f"model.layers.{layer}."
        yield start + "mlp.gate.weight", normal(EXPERTS, HIDDEN, random=random, spread=1.0)
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
        yield start + "mlp.router.weight", normal(EXPERTS, HIDDEN, random=random, spread=1.0)
        yield start + "mlp.router.bias", normal(EXPERTS, random=random)
        yield start + "self_attn.sinks", normal(HEADS, random=random)
        for which in ("q_proj", "k_proj", "v_proj"):
            yield f"{start}self_attn.{which}.bias", normal(HEADS * HEAD, random=random)
        yield start + "self_attn.o_proj.bias", normal(HIDDEN, random=random)
        for name, outputs, inputs in (("gate_up_proj", 2 * INNER, HIDDEN), ("down_proj", HIDDEN, INNER)):
            experts, groups = f"{start}mlp.experts.{name}", inputs // MX_GROUP
            if quantised:
                yield f"{experts}_blocks", octets(EXPERTS, outputs, groups, MX_GROUP // 2, random=random)
                yield f"{experts}_scales", mx_scales(EXPERTS, outputs, groups, random=random)
            else:
                yield experts, normal(EXPERTS, inputs, outputs, random=random)
            yield f"{experts}_bias", normal(EXPERTS, outputs, random=random, spread=0.5)


def _body(random: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    """What both kinds of model have beside experts."""
    yield "model.embed_tokens.weight", normal(VOCABULARY, HIDDEN, random=random, spread=1.0)
    yield "lm_head.weight", normal(VOCABULARY, HIDDEN, random=random)
    yield "model.norm.weight", torch.ones(HIDDEN, dtype=torch.bfloat16)
    for layer in range(LAYERS):
        start = f"model.layers.{layer}."
        for which in ("q_proj", "k_proj", "v_proj"):
            yield f"{start}self_attn.{which}.weight", normal(HEADS * HEAD, HIDDEN, random=random)
        yield start + "self_attn.o_proj.weight", normal(HIDDEN, HEADS * HEAD, random=random)
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
