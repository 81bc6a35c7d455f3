"""The output of each token's choices before the engine's Triton kernel sums them: for steps in several waves."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from wisp.engines.vllm.kernels.base import Apply
from wisp.errors import WispError


class PartialOutputs:
    """One buffer for the choice outputs of a step in several waves, shared by all layers of a worker.

    Made at its largest size when the layers are built, so that the engine's memory profile contains it.
    """

    def __init__(self, tokens: int, top_k: int, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self._buffer = torch.zeros(tokens * top_k * hidden, dtype=dtype, device=device)

    def take(self, outputs: torch.Tensor) -> torch.Tensor:
        """A copy of `outputs` in the buffer; the last one taken is overwritten."""
        if outputs.numel() > self._buffer.numel():
            raise WispError(
                f"a step of {tuple(outputs.shape)} choice outputs exceeds the {self._buffer.numel()} elements planned "
                f"from max_num_batched_tokens; please report this with your vLLM flags"
            )
        held = self._buffer[: outputs.numel()].view(outputs.shape)
        return held.copy_(outputs)


def choice_outputs(experts: Any, apply: Apply, arguments: dict[str, Any]) -> torch.Tensor:
    """Run the kernel, `experts.apply` as it was, up to its reduction: [tokens, k, hidden], in the engine's workspace.

    Rows of choices whose expert `expert_map` leaves out hold whatever the workspace held.
    """
    captured: list[torch.Tensor] = []
    experts.moe_sum = lambda outputs, *_: captured.append(outputs)  # shadows the method
    try:
        apply(**arguments)
    finally:
        del experts.moe_sum
    (outputs,) = captured
    return outputs


def of_rank(arguments: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """What the engine's reduction needs to leave out choices whose expert is on another rank; else nothing.

    Under expert parallelism `arguments["expert_map"]` is the engine's own: the place of each expert among those of
    this rank, -1 for another rank's. It is None where every rank has all experts.
    """
    return () if arguments["expert_map"] is None else (arguments["topk_ids"], arguments["expert_map"])


@contextmanager
def fixed_tiles(tiles: dict[str, int]) -> Iterator[None]:
    """As vLLM's `override_config`, but undone after an error too; left behind, they would hold for every later step."""
    from vllm.model_executor.layers import fused_moe

    before = fused_moe.get_config()
    fused_moe._config = tiles
    try:
        yield
    finally:
        fused_moe._config = before


def unpaged_tiles(experts: Any, num_experts: int, arguments: dict[str, Any]) -> dict[str, int]:
    """What the engine's table says for all experts; with the slots' own shape it could say something else."""
    from vllm.model_executor.layers.fused_moe.fused_moe import try_get_optimal_moe_config

    hidden_states, topk_ids = arguments["hidden_states"], arguments["topk_ids"]
    w1, w2 = (torch.Size((num_experts, *arguments[name].shape[1:])) for name in ("w1", "w2"))
    tiles: dict[str, int] = try_get_optimal_moe_config(
        w1,
        w2,
        topk_ids.shape[1],
        experts.quant_config.config_name(hidden_states.dtype),
        hidden_states.shape[0],
        block_shape=experts.block_shape,
    )
    return tiles
