"""How many layers of a model have experts, before any of them is made."""

from typing import Any


def moe_layers(model: Any, parallel: Any) -> int:
    """How many layers of this worker's stage have experts, as far as the usual keys of a configuration say.

    At most all of the stage's; at least one, since a worker without any does not ask.
    """
    config, (first, end) = model.hf_text_config, model.get_layers_start_end_indices(parallel)
    dense = max(int(getattr(config, key, 0) or 0) for key in ("first_k_dense_replace", "num_dense_layers"))
    places = set(range(max(first, dense), end)) - set(getattr(config, "mlp_only_layers", None) or ())
    kinds, marks = getattr(config, "layers_block_type", None) or (), getattr(config, "moe_layer_freq", None)
    if "moe" in kinds:  # a mixer or experts, not both, as Nemotron-H's layers
        places &= {place for place, kind in enumerate(kinds) if kind == "moe"}
    if isinstance(marks, list):
        places &= {place for place, has_experts in enumerate(marks) if has_experts}
    layers = len(places)
    for key in ("decoder_sparse_step", "moe_layer_freq", "expert_layer_period", "interleave_moe_layer_step"):
        step = getattr(config, key, None)
        if isinstance(step, int) and step > 1:
            layers = -(-layers // step)
    return max(1, layers)
