"""What the kernels have in common: how each is called, and what has to be known of one to feed it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from wisp.engines.vllm.formats import CPU, MARLIN, TRITON, WNA16
from wisp.pager.store import ExpertStore

Apply = Callable[..., Any]


class PagedKernel(Protocol):
    """The engine's kernel, fed from slots."""

    def run(self, **arguments: Any) -> None:
        """Compute the layer's output into `arguments["output"]`, which is [tokens, hidden]."""


@dataclass(frozen=True)
class KernelKind:
    """What has to be known of a kernel to feed it."""

    below_top_k: bool
    """Whether fewer slots than a token needs experts suffice."""
    takes_expert_map: bool
    """Whether it looks weights up through `expert_map`, so that the host can decide for it."""
    takes_strides: bool
    """Whether experts may be any stride apart; otherwise each tensor is contiguous."""


CPU_KIND = KernelKind(below_top_k=False, takes_expert_map=False, takes_strides=False)
TRITON_KIND = KernelKind(below_top_k=True, takes_expert_map=True, takes_strides=True)
MARLIN_KIND = KernelKind(below_top_k=True, takes_expert_map=False, takes_strides=False)

KINDS = {TRITON: TRITON_KIND, WNA16: TRITON_KIND, MARLIN: MARLIN_KIND, **dict.fromkeys(CPU, CPU_KIND)}
"""By the name of vLLM's class of experts."""


def scales_steps(experts: Any) -> bool:
    """Whether the kernel scales the activations of a step together, so that no part of it can be computed alone."""
    return (
        experts.quant_dtype is not None
        and experts.block_shape is None
        and not experts.per_act_token_quant
        and experts.a2_scale is None
    )


def needs_planar_arena(kind: KernelKind, experts: Any, store: ExpertStore) -> bool:
    """Whether each tensor has to be contiguous in the arena; with one that is, steps are also computed in one piece."""
    # A kernel that takes a stride between experts takes it of tensors only, not of one number an expert.
    takes_none = not kind.takes_strides or any(not part.shape for part in store.layout.parts)
    return takes_none or scales_steps(experts)
