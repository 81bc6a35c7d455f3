"""How many layers of a model have experts, before any of them is made."""

from typing import Any

from wisp.allocator.expert_layers import expert_layers


def moe_layers(model: Any, parallel: Any) -> int:
    """How many layers of this worker's stage have experts, as far as the usual keys of a configuration say.

    At least one, since a worker without any does not ask.
    """
    config, (first, end) = model.hf_text_config, model.get_layers_start_end_indices(parallel)
    found = expert_layers(lambda key: getattr(config, key, None), end)
    return max(1, len([layer for layer in found if layer >= first]))
