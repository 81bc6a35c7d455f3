"""How a step is computed by the engine's own MoE kernel from the slots: one class for each kind of kernel.

Those here are for what the host decides; `in_graph.py` and `planar.py` have those for what the device does. `run`
stands in for `fused_experts.apply` on one layer, after the engine has prepared its arguments.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from wisp.engines.vllm.formats import CPU, MARLIN, TRITON, WNA16
from wisp.errors import WispError
from wisp.pager.pager import ExpertPager
from wisp.pager.waves import group_tokens

Apply = Callable[..., Any]


class PagedKernel(Protocol):
    """The engine's kernel, fed from slots."""

    def run(self, **arguments: Any) -> None:
        """Compute the layer's output into `arguments["output"]`, which is [tokens, hidden]."""


class ExpertMapKernel:
    """Kernels that look their weights up through `expert_map` and reduce over choices in `moe_sum` (Triton).

    Under expert parallelism the pager knows this rank's experts alone, by their places among them.
    Each wave computes the rows of its own experts. They are kept until all waves are done and then reduced once,
    by the engine's own reduction in the unpaged order, so that the bits do not depend on the waves.
    """

    def __init__(self, experts: Any, pager: ExpertPager, partial_outputs: "PartialOutputs") -> None:
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


class SlotIdKernel:
    """Kernels that ignore `expert_map` and reduce over choices themselves (vLLM's CPU kernels).

    The ids of experts are replaced by the ids of their slots. A step that is wider than the slots runs in
    groups of whole tokens; the kernel treats rows independently, so that the bits stay the same.
    """

    def __init__(self, experts: Any, pager: ExpertPager) -> None:
        self._pager = pager
        self._apply: Apply = experts.apply

    def run(self, **arguments: Any) -> None:
        """See `PagedKernel`."""
        topk_ids: torch.Tensor = arguments["topk_ids"]
        resident = self._pager.resident
        groups = group_tokens(topk_ids.tolist(), resident.slots, resident.resident)
        for group in groups:
            for wave in self._pager.step(group.experts, single_wave=True):
                slots_of = self._pager.slots_of(wave)
                if len(groups) == 1:
                    self._apply(**{**arguments, "topk_ids": slots_of[topk_ids.long()].to(topk_ids.dtype)})
                else:
                    self._run_rows(torch.tensor(group.rows), slots_of, arguments)

    def _run_rows(self, rows: torch.Tensor, slots_of: torch.Tensor, arguments: dict[str, Any]) -> None:
        """Compute some tokens and write them to their places in the output."""
        topk_ids, output = arguments["topk_ids"], arguments["output"]
        part = torch.empty((len(rows), *output.shape[1:]), dtype=output.dtype, device=output.device)
        self._apply(
            **{
                **arguments,
                "output": part,
                "hidden_states": arguments["hidden_states"][rows],
                "topk_weights": arguments["topk_weights"][rows],
                "topk_ids": slots_of[topk_ids[rows].long()].to(topk_ids.dtype),
            }
        )
        output[rows] = part


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


def looked_up(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """`table[ids]`, and -1 where an id is negative, as engines mark padding and experts of other ranks."""
    return torch.where(ids >= 0, table[ids.long().clamp(min=0)], -1)


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


def distinct_experts(topk_ids: torch.Tensor) -> list[int]:
    """The experts of a step, ascending; waits for the device (the one synchronisation of a host-decided step)."""
    flat = topk_ids.reshape(-1).cpu()
    experts: list[int] = torch.unique(flat[flat >= 0]).tolist()
    return experts


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
