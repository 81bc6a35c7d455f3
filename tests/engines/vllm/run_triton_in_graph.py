# Triton has to be prepared before vLLM looks for it
"""Runs vLLM's own Triton MoE kernel in Triton's interpreter over an arena, decided on the "device".

python run_triton_in_graph.py RESULTS.json
"""

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))  # for `file_store`

import run_triton as shared  # prepares Triton
import torch
import vllm._custom_ops as ops
from file_store import write_store
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.forward_context import override_forward_context
from vllm.model_executor.layers.fused_moe import fused_moe as tables
from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG

from wisp.engines.vllm.in_graph_paging import InGraphPaging
from wisp.engines.vllm.kernels.choices import PartialOutputs
from wisp.engines.vllm.kernels.in_graph import InGraphKernel
from wisp.pager.store import HostStore
from wisp.resident import NOT_RESIDENT

LAYERS = 2
STEPS = (*shared.TOKENS, 1)
"""Tokens; the last step finds what the widest has left."""
SLOTS = (1, 5, 16)
SLOTS_OF_FILES = (3,)
PADDED = {2: 1, 9: 2}
"""Of so many tokens the last ones only fill the step up to the size of a graph: vLLM marks their choices."""
GRAPH_TOKENS = 9
"""Of 1, 2, 9 and 24 tokens a step the widest is streamed."""


def main(results: str) -> None:
    """Compare every number of tokens with every number of slots, some steps each, from memory and from files."""
    sorts: list[None] = []

    def counted(*arguments: Any, **flags: Any) -> None:
        sorts.append(None)
        shared.align(*arguments, **flags)

    ops.moe_align_block_size, ops.moe_sum = counted, shared.moe_sum
    tables.get_moe_configs = shared.tuned_table
    random = torch.Generator().manual_seed(0)
    cases = []
    folder = tempfile.TemporaryDirectory()
    for slots, in_files in (*((slots, False) for slots in SLOTS), *((slots, True) for slots in SLOTS_OF_FILES)):
        with set_current_vllm_config(VllmConfig()):
            experts = [
                shared.PoisonedExperts(shared.make_config(), FUSED_MOE_UNQUANTIZED_CONFIG) for _ in range(LAYERS)
            ]
        stores = masters = [make_store(random) for _ in range(LAYERS)]
        if in_files:
            stores = [write_store(master, Path(folder.name) / str(i)) for i, master in enumerate(masters)]
        paging = InGraphPaging(stores, slots, torch.device("cpu"))
        paging.arena.rows.fill_(0xFF)  # NaN
        sums = PartialOutputs(max(shared.TOKENS), shared.TOP_K, shared.HIDDEN, shared.DTYPE, torch.device("cpu"))
        kernels = [InGraphKernel(experts[layer], paging, layer, sums, GRAPH_TOKENS) for layer in range(LAYERS)]
        for tokens in STEPS:
            for layer, kernel in enumerate(kernels):
                arguments = shared.make_arguments(tokens, random)
                real = tokens - PADDED.get(tokens, 0)
                arguments["topk_ids"][real:] = NOT_RESIDENT
                whole = {name: masters[layer].tensors[name].contiguous() for name in ("w13", "w2")}
                experts[layer].apply(**arguments, w1=whole["w13"], w2=whole["w2"])
                expected = arguments["output"].clone()
                arguments["output"].fill_(torch.nan)
                sorts.clear()
                kernel.run(**arguments, w1=paging.arena.tensors["w13"], w2=paging.arena.tensors["w2"])
                cases.append(
                    {
                        "slots": slots,
                        "in_files": in_files,
                        "tokens": tokens,
                        "identical": shared.same_bits(expected[:real], arguments["output"][:real]),
                        "sorts": len(sorts),
                        "finite": bool(expected[:real].isfinite().all()),
                    }
                )
        paging.state.refresh_mirror()
        cases[-1]["totals"] = [pager.totals() for pager in paging.pagers]
    Path(results).write_text(json.dumps({"cases": cases, "broken": broken(random), "routed": routed(random)}))


def make_store(random: torch.Generator) -> HostStore:
    """Random experts of one layer."""
    shapes = {
        "w13": (shared.EXPERTS, 2 * shared.INNER, shared.HIDDEN),
        "w2": (shared.EXPERTS, shared.HIDDEN, shared.INNER),
    }
    store = HostStore({name: torch.empty(shape, dtype=shared.DTYPE) for name, shape in shapes.items()})
    for tensor in store.tensors.values():
        tensor.copy_(torch.randn(tensor.shape, generator=random).to(shared.DTYPE) / 4)
    return store


def broken(random: torch.Generator) -> bool:
    """Whether a layer that is broken on purpose still gives the right bits."""
    with set_current_vllm_config(VllmConfig()):
        experts = shared.PoisonedExperts(shared.make_config(), FUSED_MOE_UNQUANTIZED_CONFIG)
    store = make_store(random)
    paging = InGraphPaging([store], 8, torch.device("cpu"), broken=True)
    sums = PartialOutputs(2, shared.TOP_K, shared.HIDDEN, shared.DTYPE, torch.device("cpu"))
    arguments = shared.make_arguments(1, random)
    experts.apply(**arguments, w1=store.tensors["w13"].contiguous(), w2=store.tensors["w2"].contiguous())
    expected = arguments["output"].clone()
    kernel = InGraphKernel(experts, paging, 0, sums, GRAPH_TOKENS)
    kernel.run(**arguments, w1=paging.arena.tensors["w13"], w2=paging.arena.tensors["w2"])
    return shared.same_bits(expected, arguments["output"])


def routed(random: torch.Generator) -> dict[str, object]:
    """A step of which the last tokens are a graph's padding, for which the router has named experts all the same."""
    tokens, real = GRAPH_TOKENS, 2
    with set_current_vllm_config(VllmConfig()):
        experts = shared.PoisonedExperts(shared.make_config(), FUSED_MOE_UNQUANTIZED_CONFIG)
    store = make_store(random)
    paging = InGraphPaging([store], 8, torch.device("cpu"))
    sums = PartialOutputs(tokens, shared.TOP_K, shared.HIDDEN, shared.DTYPE, torch.device("cpu"))
    arguments = shared.make_arguments(tokens, random)
    ids = arguments["topk_ids"].clone()
    experts.apply(**arguments, w1=store.tensors["w13"].contiguous(), w2=store.tensors["w2"].contiguous())
    expected = arguments["output"].clone()
    kernel = InGraphKernel(experts, paging, 0, sums, GRAPH_TOKENS, padding_is_routed=True)
    with override_forward_context(SimpleNamespace(is_padding=torch.arange(2 * tokens) >= real)):
        kernel.run(**arguments, w1=paging.arena.tensors["w13"], w2=paging.arena.tensors["w2"])
    paging.state.refresh_mirror()
    return {
        "identical": shared.same_bits(expected[:real], arguments["output"][:real]),
        "finite": bool(arguments["output"].isfinite().all()),
        "ids_as_before": torch.equal(ids, arguments["topk_ids"]),
        "named": len(ids.unique()),
        "needed": len(ids[:real].unique()),
        "paged": paging.pagers[0].totals()["references"],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
