# Triton has to be prepared before vLLM looks for it
"""Runs vLLM's own Triton MoE kernel in Triton's interpreter as each rank of expert parallelism, paged and unpaged.

    python run_triton_ranks.py RESULTS.json

The unpaged rank, with the expert map that vLLM makes for it, is the oracle; slots and workspaces are NaN at first.
"""

import json
import sys
from functools import cache
from pathlib import Path

import run_triton as shared  # prepares Triton
import torch
import vllm._custom_ops as ops
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.fused_moe import fused_moe as tables
from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG
from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map

from wisp.engines.vllm.in_graph_paging import InGraphPaging
from wisp.engines.vllm.kernels.choices import PartialOutputs
from wisp.engines.vllm.kernels.expert_map import ExpertMapKernel
from wisp.engines.vllm.kernels.in_graph import InGraphKernel
from wisp.pager.counters import Counters, PoolFacts
from wisp.pager.pager import ExpertPager
from wisp.pager.pool import SlotPool
from wisp.pager.store import HostStore
from wisp.policies import make_policy
from wisp.resident import NOT_RESIDENT, ResidentSet

RANKS = 3
"""16 experts on three ranks: 6, 5 and 5."""
RANKS_AND_SLOTS = ((0, "linear", 5), (1, "round_robin", 1), (2, "linear", 3))
"""Rank, where vLLM puts its experts, and how many of them have a slot."""
TOKENS = (1, 9, 24, 1, 2)
PADDED = 1
"""The step whose last two tokens only fill it up to the size of a graph: vLLM marks their choices."""
GRAPH_TOKENS = 9
"""Of these tokens a step the widest is streamed where the device decides."""


def main(results: str) -> None:
    """Compare every rank with itself unpaged, and the ranks' sum with one rank that has all experts."""
    ops.moe_align_block_size, ops.moe_sum = shared.align, shared.moe_sum
    tables.get_moe_configs = tuned_table
    random = torch.Generator().manual_seed(0)
    whole = {
        "w1": torch.randn(shared.EXPERTS, 2 * shared.INNER, shared.HIDDEN, generator=random).to(shared.DTYPE) / 4,
        "w2": torch.randn(shared.EXPERTS, shared.HIDDEN, shared.INNER, generator=random).to(shared.DTYPE) / 4,
    }
    steps = [shared.make_arguments(tokens, random) for tokens in TOKENS]
    steps[PADDED]["topk_ids"][-2:] = NOT_RESIDENT
    cases, mistaken = [], []
    for rank, placement, slots in RANKS_AND_SLOTS:
        on_rank = expert_map(rank, placement)
        weights = {name: tensor[on_rank >= 0] for name, tensor in whole.items()}
        for how, kernel, experts, slot_tensors in paged_kernels(weights, slots):
            about = {"how": how, "rank": rank, "slots": slots}
            for step in [*steps, elsewhere(on_rank, random)]:
                expected = unpaged(experts, weights, {**step, "expert_map": on_rank})
                output = paged(kernel, slot_tensors, {**step, "expert_map": on_rank})
                cases.append(about | judged(step, on_rank, expected, output))
            expected = unpaged(experts, weights, {**steps[2], "expert_map": on_rank})
            output = paged(kernel, slot_tensors, {**steps[2], "expert_map": on_rank.roll(1)})
            mistaken.append(shared.same_bits(expected, output))
    report = {"cases": cases, "mistaken": mistaken, "apart": apart_from_the_whole(whole, steps[-1])}
    Path(results).write_text(json.dumps(report))


def expert_map(rank, placement="linear"):
    """As vLLM makes it: the place of each expert among those of the rank, -1 for another rank's."""
    return determine_expert_map(RANKS, rank, shared.EXPERTS, placement)[1]


def tuned_table(num_experts, *_):
    """Tiles that depend on the number of experts: a rank's own, or any other."""
    inner = 32 if num_experts in (5, 6, shared.EXPERTS) else 64
    common = {"BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": inner, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2}
    return {1: {"BLOCK_SIZE_M": 16, **common}, 16: {"BLOCK_SIZE_M": 32, **common}}


def elsewhere(on_rank, random):
    """A step of two tokens, none of whose experts is on this rank."""
    step = shared.make_arguments(2, random)
    others = torch.nonzero(on_rank < 0).flatten().int()
    step["topk_ids"] = torch.stack([others[: shared.TOP_K], others[-shared.TOP_K :]]).contiguous()
    return step


@cache
def vllm_config():
    """Of no model; it takes a second to make."""
    return VllmConfig()


def make_experts():
    """vLLM's kernel, whose workspaces are NaN at first."""
    with set_current_vllm_config(vllm_config()):
        return shared.PoisonedExperts(shared.make_config(), FUSED_MOE_UNQUANTIZED_CONFIG)


def paged_kernels(weights, slots):
    """Decided on the host, and on the "device": (name, kernel, the engine's kernel, its slots)."""
    store = HostStore({"w13": weights["w1"], "w2": weights["w2"]})
    store.tensors["w13"].copy_(weights["w1"])
    store.tensors["w2"].copy_(weights["w2"])
    count = store.num_experts
    counters = Counters(PoolFacts(count, slots, store.expert_bytes, "TritonExperts", "cpu"), capacity=1)
    counters.add_layer("layer", page_locked=False)
    sums = PartialOutputs(max(TOKENS), shared.TOP_K, shared.HIDDEN, shared.DTYPE, torch.device("cpu"))
    pool = SlotPool(store, slots, "cpu")
    for tensor in pool.tensors.values():
        tensor.fill_(torch.nan)
    experts = make_experts()
    pager = ExpertPager(ResidentSet(count, slots, make_policy("lru")), store, pool, counters)
    yield "host", ExpertMapKernel(experts, pager, sums), experts, pool.tensors
    experts = make_experts()
    paging = InGraphPaging([store], slots, torch.device("cpu"))
    paging.arena.rows.fill_(0xFF)  # NaN
    yield "device", InGraphKernel(experts, paging, 0, sums, GRAPH_TOKENS), experts, paging.arena.tensors


def unpaged(experts, weights, step):
    """What vLLM's kernel gives with all of the rank's experts."""
    experts.apply(**step, **weights)
    return step["output"].clone()


def paged(kernel, slot_tensors, step):
    """The same from slots."""
    step["output"].fill_(torch.nan)
    kernel.run(**step, w1=slot_tensors["w13"], w2=slot_tensors["w2"])
    return step["output"]


def judged(step, on_rank, expected, output):
    """One case as it is reported."""
    return {
        "tokens": len(step["topk_ids"]),
        "choices_here": int((shared.places(step["topk_ids"].long(), on_rank) >= 0).sum()),
        "identical": shared.same_bits(expected, output),
        "finite": bool(expected.isfinite().all()),
    }


def apart_from_the_whole(whole, step):
    """How far the paged ranks' outputs, added up, are from one rank with all experts, relative to the largest value."""
    expected = unpaged(make_experts(), whole, {**step, "expert_map": None}).float()
    total = torch.zeros_like(expected)
    for rank in range(RANKS):
        weights = {name: tensor[expert_map(rank) >= 0] for name, tensor in whole.items()}
        _, (_, kernel, _, slot_tensors) = paged_kernels(weights, 2)
        total += paged(kernel, slot_tensors, {**step, "expert_map": expert_map(rank)}).float()
    return float((total - expected).abs().max() / expected.abs().max())


if __name__ == "__main__":
    main(*sys.argv[1:])
