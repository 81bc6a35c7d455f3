# Triton has to be prepared before vLLM looks for it
"""Experts with biases, in vLLM's Triton kernel over an arena.

python run_triton_bias.py RESULTS.json
"""

import json
import sys
from pathlib import Path

import run_triton as shared  # prepares Triton
import torch
import vllm._custom_ops as ops
from run_triton_in_graph import GRAPH_TOKENS, STEPS
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.fused_moe import fused_moe as tables
from vllm.model_executor.layers.fused_moe.config import biased_moe_quant_config

from wisp.engines.vllm.in_graph_paging import InGraphPaging
from wisp.engines.vllm.kernels.choices import PartialOutputs
from wisp.engines.vllm.kernels.in_graph import InGraphKernel
from wisp.pager.store import HostStore

SLOTS = (2, 7)
SHAPES = {
    "w13": (shared.EXPERTS, 2 * shared.INNER, shared.HIDDEN),
    "w13_bias": (shared.EXPERTS, 2 * shared.INNER),
    "w2": (shared.EXPERTS, shared.HIDDEN, shared.INNER),
    "w2_bias": (shared.EXPERTS, shared.HIDDEN),
}


def main(results: str) -> None:
    """Compare every number of tokens with every number of slots; the last comparison lacks the biases."""
    ops.moe_align_block_size, ops.moe_sum = shared.align, shared.moe_sum
    tables.get_moe_configs = shared.tuned_table
    random = torch.Generator().manual_seed(0)
    cases = []
    for slots in SLOTS:
        store = HostStore({name: torch.empty(shape, dtype=shared.DTYPE) for name, shape in SHAPES.items()})
        for tensor in store.tensors.values():
            tensor.copy_(torch.randn(tensor.shape, generator=random).to(shared.DTYPE) / 4)
        whole = {name: tensor.contiguous() for name, tensor in store.tensors.items()}
        paging = InGraphPaging([store], slots, torch.device("cpu"))
        paging.arena.rows.fill_(0xFF)  # NaN
        unpaged, paged, unbiased = (make_experts(tensors) for tensors in (whole, paging.arena.tensors, None))
        sums = PartialOutputs(max(shared.TOKENS), shared.TOP_K, shared.HIDDEN, shared.DTYPE, torch.device("cpu"))
        kernel = InGraphKernel(paged, paging, 0, sums, GRAPH_TOKENS)
        for tokens in STEPS:
            arguments = shared.make_arguments(tokens, random)
            weights = {"w1": whole["w13"], "w2": whole["w2"]}
            unpaged.apply(**arguments, **weights)
            expected = arguments["output"].clone()
            unbiased.apply(**arguments, **weights)
            without = arguments["output"].clone()
            arguments["output"].fill_(torch.nan)
            kernel.run(**arguments, w1=paging.arena.tensors["w13"], w2=paging.arena.tensors["w2"])
            cases.append(
                {
                    "slots": slots,
                    "tokens": tokens,
                    "identical": shared.same_bits(expected, arguments["output"]),
                    "finite": bool(expected.isfinite().all()),
                    "biases_matter": not shared.same_bits(expected, without),
                }
            )
    Path(results).write_text(json.dumps(cases))


def make_experts(tensors: dict[str, torch.Tensor] | None) -> shared.PoisonedExperts:
    """With the biases among these tensors, or with none."""
    biases = {} if tensors is None else {"w1_bias": tensors["w13_bias"], "w2_bias": tensors["w2_bias"]}
    config = biased_moe_quant_config(**biases) if biases else shared.FUSED_MOE_UNQUANTIZED_CONFIG
    with set_current_vllm_config(VllmConfig()):
        return shared.PoisonedExperts(shared.make_config(), config)


if __name__ == "__main__":
    main(*sys.argv[1:])
