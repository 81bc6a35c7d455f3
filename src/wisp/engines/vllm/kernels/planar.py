"""Kernels that want every tensor contiguous, inside CUDA graphs too: Marlin, and Triton with one scale an expert."""

from functools import partial
from typing import Any

import torch

from wisp.engines.vllm.in_graph_paging import InGraphPaging
from wisp.engines.vllm.patches.expert_assignment import translated

MANY_CHOICES = 4096
"""From so many on, what a step needs is boiled down to a set before it is decided."""


class PlanarKernel:
    """vLLM's Triton or Marlin MoE kernel over a planar arena.

    Every expert of a step is in the arena before it is computed, in a slot or in a staging row, however wide the step
    is. So it is computed in one piece: blocks, their order, and the scales of a whole step's activations are those of
    the unpaged engine. Steps of more than `graph_tokens` tokens, which no graph holds, leave the slots as they are and
    have the other experts streamed through the staging rows, into the next layer ahead.
    """

    def __init__(self, experts: Any, paging: InGraphPaging, layer: int, graph_tokens: int) -> None:
        self._stream, self._pager = paging.stream, paging.pagers[layer]
        self._apply, self._graph_tokens = experts.apply, graph_tokens

    def run(self, **arguments: Any) -> None:
        """See `PagedKernel`."""
        # Kernels take the number of experts from the weights, and the size of blocks from that number.
        weights = {name: arguments[name][: self._pager.num_experts] for name in ("w1", "w2")}
        arguments = {**arguments, **weights, "topk_ids": arguments["topk_ids"].contiguous()}
        if arguments["topk_ids"].shape[0] <= self._graph_tokens:
            self._run_in_place(arguments)
        else:
            self._run_streamed(arguments)

    def _run_in_place(self, arguments: dict[str, Any]) -> None:
        self._stream.check_is_idle(self._pager.layer)
        topk_ids: torch.Tensor = arguments["topk_ids"]
        experts = self._pager.num_experts
        if topk_ids.numel() < MANY_CHOICES:
            choice_rows = self._pager.page(topk_ids)
        else:
            self._pager.page(needed_experts(topk_ids, experts))
            choice_rows = None

        def rows_of_choices(ids: torch.Tensor) -> torch.Tensor:
            return self._pager.rows_of(ids) if choice_rows is None else choice_rows

        with translated(experts, self._pager.rows_of, rows_of_choices):
            self._apply(**arguments)

    def _run_streamed(self, arguments: dict[str, Any]) -> None:
        for row_of in self._stream.waves(self._pager.layer, arguments["topk_ids"]):  # one, of all experts
            rows_of = partial(self._pager.rows_of, row_of=row_of)
            with translated(self._pager.num_experts, rows_of, rows_of):
                self._apply(**arguments)


def needed_experts(topk_ids: torch.Tensor, num_experts: int) -> torch.Tensor:
    """[1, experts]: the ids in `topk_ids`, each once in its own place, and -1 in the others."""
    ids = topk_ids.reshape(-1).long()
    needed = torch.zeros(num_experts + 1, dtype=torch.bool, device=ids.device)
    needed[torch.where(ids >= 0, ids, num_experts)] = True  # engines mark padding by -1
    places = torch.arange(num_experts, dtype=topk_ids.dtype, device=ids.device)
    return torch.where(needed[:num_experts], places, -1).unsqueeze(0)
