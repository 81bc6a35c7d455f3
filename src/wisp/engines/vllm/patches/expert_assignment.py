"""How vLLM's kernels assign tokens to experts: tell them where each expert's weights lie.

Why: `expert_map` takes part in sorting tokens into blocks, so it can only name slots below the number of experts, and
the size and order of the blocks would be others. Here blocks are sorted by expert, exactly as without paging, and only
then each block's expert is replaced by the row of its weights, which may be any row of the arena or, for a kernel that
takes a stride between experts, of the backing store.
What: `triton_moe._prepare_expert_assignment`, and `moe_align_block_size` as `triton_moe` and `marlin_moe` call it. Each
calls the original as the unpaged engine would, then translates what it returns. Under expert parallelism that is with
the engine's own `expert_map`, which drops the choices of other ranks and names experts by their places on this one. In
force only inside `translated`, for one call of the kernel.
Versions: 0.32. Ends when: vLLM takes a table of weight rows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Translate = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def translated(
    num_experts: int, block_rows: Translate, choice_rows: Translate, sorted_before: dict[Any, Any] | None = None
) -> Iterator[None]:
    """Within, blocks of tokens get their weights' rows; `num_experts` are those on this rank.

    `block_rows` maps the expert of each block, `choice_rows` the expert of each (token, choice), which is what vLLM
    uses for few tokens, where it does not sort. Where the same step is computed in several waves, it is sorted in the
    first one alone, and `sorted_before`, which is theirs together, keeps what came of it.
    """
    kept = {} if sorted_before is None else sorted_before
    from vllm.model_executor.layers.fused_moe.experts import marlin_moe, triton_moe

    unsorted, align = triton_moe._prepare_expert_assignment, triton_moe.moe_align_block_size

    # without a map vLLM takes the number of experts from the weights, which here are an arena
    def prepare(topk_ids: Any, config: Any, tokens: int, top_k: int, experts: int, on_rank: Any, **flags: Any) -> Any:
        of_all = num_experts if on_rank is None else experts
        key = "prepare", config["BLOCK_SIZE_M"]
        if key not in kept:
            kept[key] = unsorted(topk_ids, config, tokens, top_k, of_all, on_rank, **flags)
        sorted_ids, expert_ids, padded = kept[key]
        rows = choice_rows(expert_ids) if sorted_ids is None else block_rows(expert_ids)
        return sorted_ids, rows, padded

    def align_rows(topk_ids: Any, block_size: int, experts: int, on_rank: Any, **flags: Any) -> Any:
        of_all = num_experts if on_rank is None else experts
        key = "align", block_size
        if key not in kept:
            kept[key] = align(topk_ids, block_size, of_all, on_rank, **flags)
        sorted_ids, expert_ids, padded = kept[key]
        return sorted_ids, block_rows(expert_ids), padded

    def align_short_rows(*arguments: Any, **flags: Any) -> Any:
        sorted_ids, rows, padded = align_rows(*arguments, **flags)
        return sorted_ids, rows.to(torch.int32), padded  # Marlin reads them as 32 bits, whatever they are

    triton_moe._prepare_expert_assignment = prepare
    triton_moe.moe_align_block_size = align_rows
    marlin_moe.moe_align_block_size = align_short_rows
    try:
        yield
    finally:
        triton_moe._prepare_expert_assignment = unsorted
        triton_moe.moe_align_block_size = marlin_moe.moe_align_block_size = align
