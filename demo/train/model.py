"""The demo model for training: Qwen3-MoE's arithmetic in compact form, and its export to a standard checkpoint.

All experts of a layer are computed for every token and weighted by the router, where the experts that were not chosen
have the weight 0. At this size three large matrix products beat sorting tokens by expert.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "decoder_sparse_step": 1,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 160,
    "initializer_range": 0.02,
    "intermediate_size": 256,
    "max_position_embeddings": 2048,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.005,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 4096,
}
GENERATION_CONFIG = {
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.9,
    "repetition_penalty": 1.2,  # a model this small repeats itself without it
    "eos_token_id": [2, 0],
    "pad_token_id": 0,
}

VOCABULARY, HIDDEN, LAYERS = CONFIG["vocab_size"], CONFIG["hidden_size"], CONFIG["num_hidden_layers"]
HEADS, KV_HEADS, HEAD = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"], CONFIG["head_dim"]
EXPERTS, TOP_K, WIDTH = CONFIG["num_experts"], CONFIG["num_experts_per_tok"], CONFIG["moe_intermediate_size"]


def matrix(rows: int, columns: int, gain: float = 0.5) -> nn.Parameter:
    """A normally distributed weight whose scale follows its fan-in."""
    return nn.Parameter(torch.randn(rows, columns) * gain / math.sqrt(columns))


class RmsNorm(nn.Module):
    """Root-mean-square normalisation in float32."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + CONFIG["rms_norm_eps"])
        return (wide * self.weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x [batch, heads, tokens, HEAD] (halves convention)."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


class Layer(nn.Module):
    """One transformer layer: grouped-query attention with normed queries and keys, then the experts."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        out_gain = 0.5 / math.sqrt(2 * LAYERS)
        self.input_layernorm = RmsNorm(HIDDEN)
        self.post_attention_layernorm = RmsNorm(HIDDEN)
        self.q_norm, self.k_norm = RmsNorm(HEAD), RmsNorm(HEAD)
        self.q_proj = matrix(HEADS * HEAD, HIDDEN)
        self.k_proj = matrix(KV_HEADS * HEAD, HIDDEN)
        self.v_proj = matrix(KV_HEADS * HEAD, HIDDEN)
        self.o_proj = matrix(HIDDEN, HEADS * HEAD, out_gain)
        self.router = matrix(EXPERTS, HIDDEN)
        self.gate_proj = matrix(EXPERTS * WIDTH, HIDDEN)
        self.up_proj = matrix(EXPERTS * WIDTH, HIDDEN)
        # [HIDDEN, EXPERTS * WIDTH]: one product sums over the experts; its fan-in is that of TOP_K experts
        self.down_proj = nn.Parameter(torch.randn(HIDDEN, EXPERTS * WIDTH) * 2 * out_gain / math.sqrt(TOP_K * WIDTH))
        self.dropout = dropout

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal self-attention of x [batch, tokens, HIDDEN]."""
        batch, tokens, _ = x.shape
        q = self.q_norm(F.linear(x, self.q_proj).view(batch, tokens, HEADS, HEAD)).transpose(1, 2)
        k = self.k_norm(F.linear(x, self.k_proj).view(batch, tokens, KV_HEADS, HEAD)).transpose(1, 2)
        v = F.linear(x, self.v_proj).view(batch, tokens, KV_HEADS, HEAD).transpose(1, 2)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        k = k.repeat_interleave(HEADS // KV_HEADS, dim=1)
        v = v.repeat_interleave(HEADS // KV_HEADS, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(mixed.transpose(1, 2).reshape(batch, tokens, HEADS * HEAD), self.o_proj)

    def experts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The layer's output, the load of each expert (a mean choice count) and the mean router probability."""
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.float(), self.router)
        probabilities = logits.softmax(-1)
        chosen = probabilities.topk(TOP_K, dim=-1)
        mask = torch.zeros_like(probabilities).scatter(-1, chosen.indices, 1.0)
        weights = probabilities * mask
        weights = weights / weights.sum(-1, keepdim=True)
        hidden = F.silu(F.linear(x, self.gate_proj)) * F.linear(x, self.up_proj)
        hidden = hidden.unflatten(-1, (EXPERTS, WIDTH)) * weights.unsqueeze(-1).to(hidden.dtype)
        return F.linear(hidden.flatten(-2), self.down_proj), mask.mean((0, 1)), probabilities.mean((0, 1))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The layer's output, and load and probability as `experts` gives them."""
        mixed = self.attention(self.input_layernorm(x), cos, sin)
        x = x + F.dropout(mixed, self.dropout, self.training)
        output, load, probability = self.experts(self.post_attention_layernorm(x))
        return x + F.dropout(output, self.dropout, self.training), load, probability


class DemoModel(nn.Module):
    """Embedding, layers, final norm; the output matrix is the embedding."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed_tokens = nn.Parameter(torch.randn(VOCABULARY, HIDDEN) * 0.02)
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(LAYERS))
        self.norm = RmsNorm(HIDDEN)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean loss in nats, the balance loss (TOP_K when even) and the load [LAYERS, EXPERTS]."""
        x = F.embedding(tokens, self.embed_tokens)
        inverse = 1.0 / CONFIG["rope_theta"] ** (torch.arange(0, HEAD, 2, device=x.device).float() / HEAD)
        angles = torch.arange(tokens.shape[1], device=x.device).float()[:, None] * inverse
        cos, sin = angles.cos(), angles.sin()
        loads, balances = [], []
        for layer in self.layers:
            x, load, probability = layer(x, cos, sin)
            loads.append(load)
            balances.append(EXPERTS * (load * probability).sum())
        logits = F.linear(self.norm(x), self.embed_tokens.to(x.dtype))
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        return loss, torch.stack(balances).mean(), torch.stack(loads).detach()

    def checkpoint(self) -> dict[str, Tensor]:
        """The weights in bf16 under the names that Qwen3MoeForCausalLM checkpoints use."""
        tensors = {"model.embed_tokens.weight": self.embed_tokens, "model.norm.weight": self.norm.weight}
        for number, layer in enumerate(self.layers):
            name = f"model.layers.{number}."
            for part in ("input_layernorm", "post_attention_layernorm"):
                tensors[f"{name}{part}.weight"] = getattr(layer, part).weight
            for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
                tensors[f"{name}self_attn.{part}.weight"] = getattr(layer, part)
            for part in ("q_norm", "k_norm"):
                tensors[f"{name}self_attn.{part}.weight"] = getattr(layer, part).weight
            tensors[f"{name}mlp.gate.weight"] = layer.router
            for expert in range(EXPERTS):
                rows = slice(expert * WIDTH, (expert + 1) * WIDTH)
                for part in ("gate_proj", "up_proj"):
                    tensors[f"{name}mlp.experts.{expert}.{part}.weight"] = getattr(layer, part)[rows]
                tensors[f"{name}mlp.experts.{expert}.down_proj.weight"] = layer.down_proj[:, rows]
        return {key: value.detach().to("cpu", torch.bfloat16).contiguous() for key, value in tensors.items()}


def export(model: DemoModel, out: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors; the tokenizer is there already."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps(GENERATION_CONFIG, indent=2) + "\n")
    save_file(model.checkpoint(), out / "model.safetensors", metadata={"format": "pt"})
