"""A kernel that writes a step's ids, as a router's last one does, to page behind."""

import torch
import triton
import triton.language as tl


@triton.jit
def _choose(logits, ids, top_k: tl.constexpr, experts: tl.constexpr):
    token = tl.program_id(0)
    expert = tl.arange(0, experts)
    values = tl.load(logits + token * experts + expert)
    for choice in range(0, top_k):
        best = tl.argmax(values, axis=0)
        tl.store(ids + token * top_k + choice, best)
        values = tl.where(expert == best, float("-inf"), values)


class Router:
    """Logits whose largest choose given ids, layer by layer."""

    def __init__(self, ids: torch.Tensor, experts: int) -> None:
        """`ids` int32 [layers, tokens, k] are what it will choose; `experts` is a power of two."""
        layers, tokens, top_k = ids.shape
        values = torch.arange(top_k, 0, -1, device=ids.device).float().expand(ids.shape)
        self._logits = torch.zeros(layers, tokens, experts, device=ids.device).scatter_(2, ids.long(), values)
        self.ids = torch.zeros_like(ids)
        """Written by `route`, of its layer."""

    def route(self, layer: int) -> None:
        """Choose the layer's ids: one program a token."""
        tokens, top_k = self.ids.shape[1:]
        _choose[(tokens,)](self._logits[layer], self.ids[layer], top_k, self._logits.shape[-1], num_warps=1)
