"""Runs vLLM's own Triton MoE kernel in Triton's interpreter, paged and unpaged, and writes down how they compare.

    python run_triton.py RESULTS.json

vLLM takes its kernel to need a GPU. The two operations around it that exist for CUDA only have stand-ins here.
"""

import json
import sys
from pathlib import Path

import interpreted  # noqa: F401
import torch
import vllm._custom_ops as ops
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers import fused_moe
from vllm.model_executor.layers.fused_moe import MoEActivation
from vllm.model_executor.layers.fused_moe import fused_moe as tables
from vllm.model_executor.layers.fused_moe.config import (
    FUSED_MOE_UNQUANTIZED_CONFIG,
    FusedMoEConfig,
    FusedMoEParallelConfig,
    RoutingMethodType,
)
from vllm.model_executor.layers.fused_moe.experts import triton_moe

from wisp.engines.vllm.kernels.choices import PartialOutputs
from wisp.engines.vllm.kernels.expert_map import ExpertMapKernel
from wisp.pager.counters import Counters, PoolFacts
from wisp.pager.pager import ExpertPager
from wisp.pager.pool import SlotPool
from wisp.pager.store import HostStore
from wisp.policies import make_policy
from wisp.resident import ResidentSet

EXPERTS, TOP_K, HIDDEN, INNER = 16, 4, 64, 32
TOKENS = (1, 2, 9, 24)
SLOTS = (1, 3, 5, 16)
DTYPE = torch.float16
"""Triton's interpreter multiplies bfloat16 as if its bits were whole numbers, beside which a small term is nothing."""


def tuned_table(num_experts, *_):
    """As if measured on this device: tiles that depend on the number of tokens, and on the number of experts."""
    inner = 32 if num_experts == EXPERTS else 64
    common = {"BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": inner, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2}
    return {1: {"BLOCK_SIZE_M": 16, **common}, 16: {"BLOCK_SIZE_M": 32, **common}}


def align(topk_ids, num_experts, block_size, sorted_ids, expert_ids, num_padded, expert_map=None, scatter_idx=None):
    """Sort choices by expert, each expert padded to whole blocks; with a map, drop the choices that map to -1."""
    flat = topk_ids.flatten().long()
    owner = flat if expert_map is None else places(flat, expert_map)
    sorted_ids.fill_(flat.numel())
    expert_ids.fill_(-7)  # no kernel may look beyond `num_padded`
    end = 0
    for expert in range(num_experts):
        choices = torch.nonzero(owner == expert).flatten()
        blocks = -(-len(choices) // block_size)
        sorted_ids[end : end + len(choices)] = choices.int()
        expert_ids[end // block_size : end // block_size + blocks] = expert
        end += blocks * block_size
    num_padded.fill_(end)


def places(ids, expert_map):
    """Where each expert is on this rank; -1 for another rank's, and for what pads a step to the size of a graph."""
    return torch.where(ids >= 0, expert_map[ids.clamp(min=0)].long(), -1)


def moe_sum(choices, output, topk_ids=None, expert_map=None):
    """Add up the choices of each token in their order; with a map, those alone that do not map to -1."""
    total = torch.zeros(output.shape, dtype=torch.float32)
    for rank in range(choices.shape[1]):
        term = choices[:, rank].float()
        if expert_map is not None:
            term = torch.where((places(topk_ids[:, rank].long(), expert_map) >= 0).unsqueeze(-1), term, 0.0)
        total += term
    output.copy_(total)


class PoisonedExperts(triton_moe.TritonExperts):
    """Whatever a call does not write into its workspaces is NaN; notes the tiles and the rows of its weights."""

    def __init__(self, *args):
        super().__init__(*args)
        self.calls, self.fails_at = [], 0

    def apply(self, **arguments):
        for name in ("workspace13", "workspace2"):
            arguments[name].fill_(torch.nan)
        self.calls.append({"rows": arguments["w1"].shape[0]})
        if len(self.calls) == self.fails_at:
            raise ZeroDivisionError("the kernel failed")
        super().apply(**arguments)


def main(results: str) -> None:
    """Compare every number of tokens with every number of slots."""
    ops.moe_align_block_size, ops.moe_sum = align, moe_sum
    tables.get_moe_configs = tuned_table
    find_tiles = triton_moe.try_get_optimal_moe_config
    tiles = []

    def spy(*args, **kwargs):
        tiles.append(find_tiles(*args, **kwargs))
        return tiles[-1]

    triton_moe.try_get_optimal_moe_config = spy
    with set_current_vllm_config(VllmConfig()):
        experts = PoisonedExperts(make_config(), FUSED_MOE_UNQUANTIZED_CONFIG)
    random = torch.Generator().manual_seed(0)
    w13 = torch.randn(EXPERTS, 2 * INNER, HIDDEN, generator=random).to(DTYPE) / 4
    w2 = torch.randn(EXPERTS, HIDDEN, INNER, generator=random).to(DTYPE) / 4
    cases = []
    for slots in SLOTS:
        experts.__dict__.pop("apply", None)
        kernel, pager = make_paged(experts, w13, w2, slots)
        for tokens in TOKENS:
            arguments = make_arguments(tokens, random)
            waves = []
            pager.observe = lambda plan, waves=waves: waves.append(len(plan.waves))
            tiles.clear()
            experts.apply(**arguments, w1=w13, w2=w2)
            expected, unpaged_tiles = arguments["output"].clone(), list(tiles)
            arguments["output"].fill_(torch.nan)
            tiles.clear()
            experts.calls.clear()
            kernel._partial_outputs._buffer.fill_(torch.nan)
            kernel.run(**arguments, w1=pager.pool.tensors["w13"], w2=pager.pool.tensors["w2"])
            paged_tiles = list(tiles)
            own = find_tiles((slots, *w13.shape[1:]), (slots, *w2.shape[1:]), TOP_K, None, tokens)
            cases.append(
                {
                    "slots": slots,
                    "tokens": tokens,
                    "identical": same_bits(expected, arguments["output"]),
                    "finite": bool(expected.isfinite().all()),
                    "off": relative_distance(expected, plain_output(arguments, w13, w2)),
                    "distinct": len(arguments["topk_ids"].unique()),
                    "waves": waves,
                    "calls": experts.calls.copy(),
                    "unpaged_tiles": unpaged_tiles,
                    "paged_tiles": paged_tiles,
                    "tiles_of_the_slots": own,
                    "left_behind": fused_moe.get_config(),
                }
            )
    failure = fail_and_go_on(experts, w13, w2, random)
    Path(results).write_text(json.dumps({"cases": cases, "failure": failure}))


def fail_and_go_on(experts, w13, w2, random) -> dict[str, object]:
    """The kernel raises in the second wave; what is left behind, and the next step."""
    experts.__dict__.pop("apply", None)
    kernel, pager = make_paged(experts, w13, w2, 3)
    arguments = make_arguments(9, random)
    slots = {"w1": pager.pool.tensors["w13"], "w2": pager.pool.tensors["w2"]}
    experts.apply(**arguments, w1=w13, w2=w2)
    expected = arguments["output"].clone()
    experts.calls.clear()
    experts.fails_at = 2
    try:
        kernel.run(**arguments, **slots)
    except ZeroDivisionError as error:
        kept = error
    experts.fails_at = 0
    kernel.run(**arguments, **slots)
    return {
        "raised": str(kept),
        "tiles": fused_moe.get_config(),
        "shadows": sorted({"moe_sum"} & set(vars(experts))),
        "identical": same_bits(expected, arguments["output"]),
    }


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two 16-bit tensors are bitwise equal."""
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def plain_output(arguments, w13, w2) -> torch.Tensor:
    """What the step should give: float32, choice by choice, rounded where the kernels store 16 bits."""
    x, output = arguments["hidden_states"].float(), torch.zeros(arguments["output"].shape)
    for token, experts in enumerate(arguments["topk_ids"].tolist()):
        for choice, expert in enumerate(experts):
            gate, up = (w13[expert].float() @ x[token]).to(DTYPE).float().split(INNER)
            inner = (torch.nn.functional.silu(gate) * up).to(DTYPE).float()
            output[token] += arguments["topk_weights"][token, choice] * (w2[expert].float() @ inner)
    return output


def relative_distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, by the largest value."""
    return float((one.float() - other).abs().max() / other.abs().max())


def make_config() -> FusedMoEConfig:
    """Of one layer on one device."""
    return FusedMoEConfig(
        num_experts=EXPERTS,
        experts_per_token=TOP_K,
        hidden_dim=HIDDEN,
        intermediate_size=INNER,
        num_local_experts=EXPERTS,
        num_logical_experts=EXPERTS,
        activation=MoEActivation.SILU,
        device="cpu",
        routing_method=RoutingMethodType.Renormalize,
        moe_parallel_config=FusedMoEParallelConfig.make_no_parallel(),
        in_dtype=DTYPE,
    )


def make_paged(experts, w13, w2, slots):
    """The kernel over a pool of slots, cold."""
    store = HostStore({"w13": w13, "w2": w2})
    store.tensors["w13"].copy_(w13)
    store.tensors["w2"].copy_(w2)
    counters = Counters(PoolFacts(EXPERTS, slots, store.expert_bytes, "TritonExperts", "cpu"), capacity=1)
    counters.add_layer("layer", page_locked=False)
    pool = SlotPool(store, slots, "cpu")
    for tensor in pool.tensors.values():
        tensor.fill_(torch.nan)
    pager = ExpertPager(ResidentSet(EXPERTS, slots, make_policy("lru")), store, pool, counters)
    partial_outputs = PartialOutputs(max(TOKENS), TOP_K, HIDDEN, DTYPE, torch.device("cpu"))
    return ExpertMapKernel(experts, pager, partial_outputs), pager


def make_arguments(tokens, random):
    """What the engine hands to `apply` for a step, but for the weights."""
    return {
        "output": torch.empty(tokens, HIDDEN, dtype=DTYPE),
        "hidden_states": torch.randn(tokens, HIDDEN, generator=random).to(DTYPE),
        "topk_weights": torch.rand(tokens, TOP_K, generator=random),
        "topk_ids": torch.rand(tokens, EXPERTS, generator=random).topk(TOP_K).indices.int(),
        "activation": MoEActivation.SILU,
        "global_num_experts": EXPERTS,
        "expert_map": None,
        "a1q_scale": None,
        "a2_scale": None,
        "workspace13": torch.empty(tokens * TOP_K * max(INNER, HIDDEN), dtype=DTYPE),
        "workspace2": torch.empty(tokens * TOP_K * max(2 * INNER, HIDDEN), dtype=DTYPE),
        "expert_tokens_meta": None,
        "apply_router_weight_on_input": False,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
