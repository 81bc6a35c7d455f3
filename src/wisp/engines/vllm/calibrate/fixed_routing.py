"""Routing that does not look at tokens: as many distinct experts a step as asked for, as many of them new as asked for.

vLLM takes it in place of a model's own router when an environment variable names it. What it goes by is in tensors on
the device, so that a captured graph follows a change; on a GPU it is one small kernel, as the router's own choice is.
"""

import torch
import triton
import triton.language as tl
from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingSimulator, RoutingStrategy

NAME = "wisp_fixed"
VARIABLE = "VLLM_MOE_ROUTING_SIMULATION_STRATEGY"
_BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _route(asked, ids, weights, count, layers, num_experts, TOP_K: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    calls, width, shift = tl.load(asked), tl.load(asked + 1), tl.load(asked + 2)
    first = calls // layers * shift
    for start in range(0, count, BLOCK):
        choice = start + tl.arange(0, BLOCK)
        tl.store(ids + choice, (first + choice % width) % num_experts, mask=choice < count)
        tl.store(weights + choice, 1.0 / TOP_K, mask=choice < count)
    tl.store(asked, calls + 1)


class FixedRouting(RoutingStrategy):  # type: ignore[misc]  # vLLM is not typed
    """Step s uses experts `s * shift` to `s * shift + width - 1`, modulo their number."""

    def __init__(self, layers: int, num_experts: int, top_k: int, device: str) -> None:
        self._layers, self._num_experts = layers, num_experts
        self._asked = torch.tensor([0, top_k, 0], dtype=torch.int64, device=device)  # calls so far, width, shift

    def register(self) -> "FixedRouting":
        """Offer it to vLLM by its name."""
        RoutingSimulator.register_strategy(NAME, self)
        return self

    def use(self, width: int, shift: int) -> None:
        """From the next step on: `width` distinct experts, of which the step before did not use `shift`."""
        self._asked[1:] = torch.tensor([width, shift])

    def route_tokens(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        top_k: int,
        indices_type: torch.dtype | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called once a layer and step; float32 and ids, [tokens, top_k] each."""
        tokens, device = hidden_states.shape[0], hidden_states.device
        dtype = indices_type or torch.int32
        if device.type == "cpu":
            first = torch.div(self._asked[0], self._layers, rounding_mode="floor") * self._asked[2]
            self._asked[0] += 1
            experts = (first + torch.arange(tokens * top_k) % self._asked[1]) % self._num_experts
            return torch.full((tokens, top_k), 1.0 / top_k), experts.view(tokens, top_k).to(dtype)
        ids = torch.empty((tokens, top_k), dtype=dtype, device=device)
        weights = torch.empty((tokens, top_k), dtype=torch.float32, device=device)
        _route[(1,)](self._asked, ids, weights, ids.numel(), self._layers, self._num_experts, TOP_K=top_k, BLOCK=_BLOCK)
        return weights, ids
