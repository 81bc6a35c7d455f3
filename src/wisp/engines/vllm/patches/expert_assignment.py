"""`triton_moe._prepare_expert_assignment`: tell vLLM's Triton kernel where each expert's weights lie.

Why: `expert_map` takes part in sorting tokens into blocks, so it can only name slots below the number of experts.
Here blocks are sorted by expert, exactly as without paging, and only then each block's expert is replaced by the
row of its weights, which may be any row of the arena or of the backing store.
What: calls the original as the unpaged engine would, then translates what it returns. Under expert parallelism that
is with the engine's own `expert_map`, which drops the choices of other ranks and names experts by their places on
this one. In force only inside `translated`, for one call of the kernel.
Versions: 0.32. Ends when: vLLM takes a table of weight rows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Translate = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def translated(num_experts: int, block_rows: Translate, choice_rows: Translate) -> Iterator[None]:
    """Within, blocks of tokens get their weights' rows; `num_experts` are those on this rank.

    `block_rows` maps the expert of each block, `choice_rows` the expert of each (token, choice), which is what vLLM
    uses for few tokens, where it does not sort.
    """
    from vllm.model_executor.layers.fused_moe.experts import triton_moe

    original = triton_moe._prepare_expert_assignment

    def prepare(topk_ids: Any, config: Any, tokens: int, top_k: int, experts: int, on_rank: Any, **flags: Any) -> Any:
        # without a map vLLM takes the number of experts from the weights, which here are an arena
        of_all = num_experts if on_rank is None else experts
        sorted_ids, expert_ids, padded = original(topk_ids, config, tokens, top_k, of_all, on_rank, **flags)
        rows = choice_rows(expert_ids) if sorted_ids is None else block_rows(expert_ids)
        return sorted_ids, rows, padded

    triton_moe._prepare_expert_assignment = prepare
    try:
        yield
    finally:
        triton_moe._prepare_expert_assignment = original
