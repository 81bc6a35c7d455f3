"""Where the host decides for the engine's Triton kernel: experts are looked up through `expert_map`, wave by wave."""

from typing import Any

import torch

from wisp.engines.vllm.kernels.base import Apply
from wisp.engines.vllm.kernels.choices import PartialOutputs, choice_outputs, fixed_tiles, of_rank, unpaged_tiles
from wisp.pager.pager import ExpertPager


class ExpertMapKernel:
    """Kernels that look their weights up through `expert_map` and reduce over choices in `moe_sum` (Triton).

    Under expert parallelism the pager knows this rank's experts alone, by their places among them.
    Each wave computes the rows of its own experts. They are kept until all waves are done and then reduced once,
    by the engine's own reduction in the unpaged order, so that the bits do not depend on the waves.
    """

    def __init__(self, experts: Any, pager: ExpertPager, partial_outputs: PartialOutputs) -> None:
        self._experts, self._pager, self._partial_outputs = experts, pager, partial_outputs
        self._apply: Apply = experts.apply
        self._moe_sum: Apply = experts.moe_sum

    def run(self, **arguments: Any) -> None:
        """See `PagedKernel`; the tiles are those that the kernel would use with every expert present."""
        topk_ids: torch.Tensor = arguments["topk_ids"]
        on_rank: torch.Tensor | None = arguments["expert_map"]
        rank_ids = topk_ids if on_rank is None else looked_up(on_rank, topk_ids)
        experts = distinct_experts(rank_ids)
        in_one_wave = len(experts) <= self._pager.resident.slots
        merged: torch.Tensor | None = None
        with fixed_tiles(unpaged_tiles(self._experts, self._pager.resident.num_experts, arguments)):
            for wave in self._pager.step(experts):
                slots_of = self._pager.slots_of(wave)
                expert_map = slots_of if on_rank is None else looked_up(slots_of, on_rank)
                outputs = choice_outputs(self._experts, self._apply, {**arguments, "expert_map": expert_map})
                if in_one_wave:
                    merged = outputs
                elif merged is None:
                    merged = self._partial_outputs.take(outputs)
                else:
                    mine = looked_up(slots_of, rank_ids) >= 0
                    torch.where(mine.unsqueeze(-1), outputs, merged, out=merged)
        if merged is None:  # no token at all, or none whose experts are on this rank
            arguments["output"].zero_()
            return
        self._moe_sum(merged, arguments["output"], *of_rank(arguments))


def looked_up(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """`table[ids]`, and -1 where an id is negative, as engines mark padding and experts of other ranks."""
    return torch.where(ids >= 0, table[ids.long().clamp(min=0)], -1)


def distinct_experts(topk_ids: torch.Tensor) -> list[int]:
    """The experts of a step, ascending; waits for the device (the one synchronisation of a host-decided step)."""
    flat = topk_ids.reshape(-1).cpu()
    experts: list[int] = torch.unique(flat[flat >= 0]).tolist()
    return experts
