"""A checkpoint of random bf16 weights in the shape of Qwen3-30B-A3B, with fewer layers."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SHAPES = Path(__file__).parent.parent / "iso_vram" / "qwen3-30b-a3b" / "config.json"
THREADS = 8


def write(folder: Path, layers: int, *, tiny: bool) -> None:
    """One file a layer, one for the rest; `tiny` is for trying the script out."""
    config = json.loads(SHAPES.read_text()) | {"num_hidden_layers": layers}
    if tiny:
        config |= {"hidden_size": 256, "moe_intermediate_size": 64, "num_experts": 16, "vocab_size": 512}
        config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = (config["vocab_size"], config["hidden_size"])
    rest = {"model.embed_tokens": vocabulary, "lm_head": vocabulary, "model.norm": vocabulary[1:]}
    with ThreadPoolExecutor(THREADS) as pool:
        writing = [pool.submit(_write, folder / "rest.safetensors", rest, seed=layers)]
        for layer in range(layers):
            named = {f"model.layers.{layer}.{name}": shape for name, shape in _layer(config).items()}
            writing.append(pool.submit(_write, folder / f"layer-{layer:02}.safetensors", named, seed=layer))
        for each in writing:
            each.result()


def _layer(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, width, head = config["hidden_size"], config["moe_intermediate_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "mlp.gate": (config["num_experts"], hidden),
    }
    for expert in range(config["num_experts"]):
        shapes[f"mlp.experts.{expert}.gate_proj"] = (width, hidden)
        shapes[f"mlp.experts.{expert}.up_proj"] = (width, hidden)
        shapes[f"mlp.experts.{expert}.down_proj"] = (hidden, width)
    return shapes


def _write(path: Path, shapes: dict[str, tuple[int, ...]], *, seed: int) -> None:
    """The header's length, and so where tensors begin, differs by 8 bytes between even and odd seeds."""
    random = torch.Generator().manual_seed(seed)
    tensors = {f"{name}.weight": _weights(shape, random) for name, shape in shapes.items()}
    save_file(tensors, path, metadata={"pad": "x" * (8 * (seed % 2))})


def _weights(shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    """Numbers of magnitude 2^-8 with random signs and mantissas: drawn faster than normal ones."""
    bits = torch.randint(-(2**15), 2**15, shape, dtype=torch.int16, generator=random)
    return (bits & -0x7F81 | 0x3B80).view(torch.bfloat16)
