"""How vLLM's CPU kernels lay an expert out: packed, one expert apart from the others."""

from typing import Any

import torch

from wisp.pager.checkpoint_store import Arrange


def packing_of(experts: Any) -> Arrange | None:
    """What has to be done to an expert's tensor as the checkpoint has it; None where the kernel takes it as it is."""
    if experts._use_zentorch:
        return None

    def pack(raw: torch.Tensor, target: torch.Tensor) -> None:
        torch.ops._C.prepack_moe_weight(raw.unsqueeze(0), target.unsqueeze(0), experts.isa)

    return pack
