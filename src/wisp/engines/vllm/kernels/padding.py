"""Tokens that only fill a step up to the size of its CUDA graph, and what they would page in.

vLLM's routers by top-k mark the choices of such tokens by -1. Those that go by groups of experts (DeepSeek-V3), or by a
function of the model's own (Llama 4, the Transformers backend), route whatever lies in the tokens' places: experts that
nobody needs would be loaded in the place of others, counted, and recorded.
"""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def is_routed(vllm_config: "VllmConfig", layer_name: str) -> bool:
    """Whether this layer's router gives experts to padding, and vLLM says which tokens that is."""
    from vllm import envs
    from vllm.model_executor.layers.fused_moe.router.custom_routing_router import CustomRoutingRouter
    from vllm.model_executor.layers.fused_moe.router.grouped_topk_router import GroupedTopKRouter

    router = vllm_config.compilation_config.static_forward_context[layer_name].router
    return bool(envs.VLLM_MOE_SKIP_PADDING) and isinstance(router, GroupedTopKRouter | CustomRoutingRouter)


def routed_as_first(topk_ids: torch.Tensor) -> torch.Tensor:
    """`topk_ids` [tokens, k] with the first token's experts, which is no padding, for all padding.

    So nothing more is needed and every row is still computed from what there is, to be thrown away.
    """
    from vllm.forward_context import get_forward_context

    is_padding: torch.Tensor | None = get_forward_context().is_padding
    return topk_ids if is_padding is None else torch.where(is_padding[: len(topk_ids), None], topk_ids[:1], topk_ids)
