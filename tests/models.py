"""Tiny checkpoints with random weights, which stock vLLM and Transformers load as they are.

The weights are large for their kind: logits differ visibly as soon as one expert is wrong.
"""

import json
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 512
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_QWEN_MOE = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "decoder_sparse_step": 1}

_LATENT: dict[str, Any] = {
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "intermediate_size": 128,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,  # these three as FlashAttention takes them
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("Qwen3Moe", {**_QWEN_MOE, "intermediate_size": 128, "head_dim": 64, "norm_topk_prob": True}),
    "qwen2_moe": ("Qwen2Moe", {**_QWEN_MOE, "intermediate_size": 128, "shared_expert_intermediate_size": 64}),
    "olmoe": ("Olmoe", {"num_experts": 16, "num_experts_per_tok": 4, "intermediate_size": 32}),
    "mixtral": (
        "Mixtral",
        {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64, "sliding_window": None},
    ),
    "glm4_moe": (  # groups of experts, a bias on their scores, a shared expert, a dense first layer
        "Glm4Moe",
        {
            "n_routed_experts": 16,
            "num_experts_per_tok": 4,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 32,
            "intermediate_size": 128,
            "head_dim": 64,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
        },
    ),
    "gpt_oss": (
        "GptOss",
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "intermediate_size": 64,
            "head_dim": 64,
            "num_hidden_layers": 2,
        },
    ),
    "deepseek_v2": (  # one latent vector a token in the KV cache, groups, two shared experts, a dense first layer
        "DeepseekV2",
        {
            **_LATENT,
            "n_shared_experts": 2,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 1.5,
            "norm_topk_prob": False,
        },
    ),
    "deepseek_v3": (  # the same with sigmoid scores and a bias on them
        "DeepseekV3",
        {
            **_LATENT,
            "n_shared_experts": 1,
            "num_nextn_predict_layers": 0,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
        },
    ),
    "minimax_m2": (  # sigmoid scores with a bias, no groups
        "MiniMaxM2",
        {
            "num_local_experts": 16,
            "num_experts_per_tok": 4,
            "intermediate_size": 32,
            "head_dim": 64,
            "rotary_dim": 32,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
        },
    ),
    "qwen3_next": (  # linear attention between; a gated shared expert
        "Qwen3Next",
        {
            **_QWEN_MOE,
            "num_hidden_layers": 2,
            "intermediate_size": 128,
            "shared_expert_intermediate_size": 32,
            "head_dim": 64,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "granitemoehybrid": (  # Mamba 2 layers between; a shared expert
        "GraniteMoeHybrid",
        {
            "num_hidden_layers": 2,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "intermediate_size": 64,
            "shared_intermediate_size": 64,
            "layer_types": ["mamba", "attention"],
            "mamba_n_heads": 4,
            "mamba_d_state": 16,
            "mamba_d_head": 32,
            "position_embedding_type": "rope",
        },
    ),
    "dense": ("Qwen3", {"intermediate_size": 128, "head_dim": 64}),
}
"""Name -> (the prefix of its classes in Transformers, what its configuration adds)."""


def make_checkpoint(kind: str, path: Path, dtype: torch.dtype = torch.bfloat16, **overrides: Any) -> Path:
    """Write a checkpoint of this kind to `path`, the same at every call; `overrides` go to its configuration."""
    import transformers

    prefix, particular = KINDS[kind]
    config = getattr(transformers, f"{prefix}Config")(**{**_COMMON, **particular, **overrides})
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "experts" in name and name.endswith("bias"):
                parameter.normal_(std=0.5)  # zero at first, and a bias of zero hides that it is another expert's
    model.to(dtype).save_pretrained(path)
    return path


def make_mtp_checkpoint(path: Path) -> Path:
    """A GLM-4-MoE checkpoint whose last layer predicts a further token (MTP): a draft model with experts."""
    from safetensors.torch import load_file, save_file

    make_checkpoint("glm4_moe", path, num_hidden_layers=4)
    config = json.loads((path / "config.json").read_text())
    last = config["num_hidden_layers"] - 1
    config |= {"num_hidden_layers": last, "num_nextn_predict_layers": 1}
    (path / "config.json").write_text(json.dumps(config))
    tensors = load_file(path / "model.safetensors")
    hidden = config["hidden_size"]
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"model.layers.{last}.{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    joined = torch.randn(hidden, 2 * hidden, generator=torch.Generator().manual_seed(1)) / 8
    tensors[f"model.layers.{last}.eh_proj.weight"] = joined.to(torch.bfloat16)
    tensors[f"model.layers.{last}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    tensors[f"model.layers.{last}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def add_tokenizer(path: Path) -> Path:
    """Give the checkpoint a tokenizer of one token a word, `w0` to `w511`, and a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="w3",
        bos_token="w1",
        eos_token="w2",
        pad_token="w0",
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(path)
    return path
