"""Which layers of a model have routed experts."""

from collections.abc import Callable
from typing import Any


def expert_layers(read: Callable[[str], Any], layers: int) -> list[int]:
    """Those of the first `layers`, by the usual keys of a configuration; `read(key)` is None for one that it lacks."""

    def number(key: str, otherwise: int) -> int:
        return int(read(key) or otherwise)

    first = max(number("first_k_dense_replace", 0), number("num_dense_layers", 0))
    found = set(range(first, layers)) - set(read("mlp_only_layers") or ())
    for key in ("decoder_sparse_step", "interleave_moe_layer_step"):
        found &= set(range(number(key, 1) - 1, layers, number(key, 1)))
    period = number("expert_layer_period", 1)
    found &= set(range(number("expert_layer_offset", 0) % period, layers, period))
    marks, kinds = read("moe_layer_freq") or 1, list(read("layers_block_type") or ())
    if isinstance(marks, list):
        found &= {layer for layer, has_experts in enumerate(marks) if has_experts}
    else:
        found &= set(range(0, layers, int(marks)))
    if "moe" in kinds:  # a mixer or experts, not both, as Nemotron-H's layers
        found &= {layer for layer, kind in enumerate(kinds) if kind == "moe"}
    return sorted(found)
