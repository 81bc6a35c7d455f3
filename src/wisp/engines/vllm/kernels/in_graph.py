"""The engine's Triton kernel over an arena, inside CUDA graphs too: every decision is made on the device."""

from typing import Any

import torch

from wisp.engines.vllm.in_graph_paging import InGraphPaging
from wisp.engines.vllm.kernels.choices import PartialOutputs, choice_outputs, fixed_tiles, of_rank, unpaged_tiles
from wisp.engines.vllm.kernels.padding import routed_as_first
from wisp.engines.vllm.patches.expert_assignment import translated
from wisp.engines.vllm.patches.second_product import before_second_product
from wisp.pager.device import look_up


class InGraphKernel:
    """vLLM's Triton MoE kernel, told where each expert lies: in its slot, in an overflow row, or in the backing store.

    Up to `graph_tokens` tokens a step is decided, copied and computed without the host, so that a CUDA graph can
    hold it; what neither slots nor overflow rows have room for is read over the link by the kernel itself. Wider steps,
    which no graph holds, stream the experts without slots past the kernel. Under expert parallelism all is of this
    rank's experts, by their places among them; what is on other ranks is left out just as the unpaged engine does.
    """

    def __init__(
        self,
        experts: Any,
        paging: InGraphPaging,
        layer: int,
        partial_outputs: PartialOutputs,
        graph_tokens: int,
        *,
        padding_is_routed: bool = False,
    ) -> None:
        """Compute layer number `layer`; `padding_is_routed` says whether ids name experts for a graph's padding."""
        self._experts, self._stream, self._pager = experts, paging.stream, paging.pagers[layer]
        self._partial_outputs, self._graph_tokens = partial_outputs, graph_tokens
        self._padding_is_routed = padding_is_routed
        self._apply, self._moe_sum = experts.apply, experts.moe_sum

    def run(self, **arguments: Any) -> None:
        """See `PagedKernel`; the tiles are those that the kernel would use with every expert present."""
        topk_ids: torch.Tensor = arguments["topk_ids"].contiguous()
        fits_a_graph = topk_ids.shape[0] <= self._graph_tokens
        if fits_a_graph and self._padding_is_routed:
            topk_ids = routed_as_first(topk_ids)
        arguments = {**arguments, "topk_ids": topk_ids}
        on_rank: torch.Tensor | None = arguments["expert_map"]
        rank_ids = topk_ids if on_rank is None else look_up(topk_ids, on_rank)
        with fixed_tiles(unpaged_tiles(self._experts, self._pager.num_experts, arguments)):
            if fits_a_graph:
                self._run_in_place(arguments, rank_ids)
            else:
                self._run_streamed(arguments, rank_ids)

    def _run_in_place(self, arguments: dict[str, Any], rank_ids: torch.Tensor) -> None:
        self._stream.check_is_idle(self._pager.layer)
        choice_rows = self._pager.page_head(rank_ids)
        with (
            translated(self._pager.num_experts, self._pager.rows_of, lambda _ids: choice_rows),
            before_second_product(self._pager.wait_for_tails),
        ):
            self._apply(**arguments)

    def _run_streamed(self, arguments: dict[str, Any], rank_ids: torch.Tensor) -> None:
        merged: torch.Tensor | None = None
        sorted_before: dict[Any, Any] = {}
        for row_of in self._stream.waves(self._pager.layer, rank_ids):
            outputs = self._choice_outputs(arguments, row_of, sorted_before)
            if merged is None:
                merged = self._partial_outputs.take(outputs)
            else:
                mine = self._pager.rows_of(rank_ids, row_of) >= 0
                torch.where(mine.unsqueeze(-1), outputs, merged, out=merged)
        self._moe_sum(merged, arguments["output"], *of_rank(arguments))

    def _choice_outputs(
        self, arguments: dict[str, Any], row_of: torch.Tensor, sorted_before: dict[Any, Any]
    ) -> torch.Tensor:
        """Run the kernel up to its reduction: [tokens, k, hidden], in the engine's workspace.

        Choices whose expert has no row in `row_of` come out as zeros.
        """

        def rows(experts: torch.Tensor) -> torch.Tensor:
            return self._pager.rows_of(experts, row_of)

        with translated(self._pager.num_experts, rows, rows, sorted_before):
            return choice_outputs(self._experts, self._apply, arguments)
