# Triton has to be prepared before vLLM looks for it
"""A target and a draft model, each paged on the "device" by itself, whose steps take turns.

python run_triton_draft.py RESULTS.json
"""

import json
import sys
from pathlib import Path

import run_triton as shared  # prepares Triton
import torch
import vllm._custom_ops as ops
from run_triton_in_graph import GRAPH_TOKENS, make_store
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.fused_moe import fused_moe as tables
from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG

from wisp.engines.vllm.in_graph_paging import InGraphPaging
from wisp.engines.vllm.kernels.choices import PartialOutputs
from wisp.engines.vllm.kernels.in_graph import InGraphKernel

SLOTS = {"target": 5, "draft": 3}
LAYERS = {"target": 2, "draft": 1}
TURNS = (("target", 24), ("draft", 24), ("draft", 2), ("target", 6), ("draft", 6), ("draft", 2), ("target", 24))
"""Prefill; a draft that sees the prompt and then guesses; verification of several tokens a request."""


class Model:
    """Layers of experts, paged and not."""

    def __init__(self, layers: int, slots: int, random: torch.Generator) -> None:
        with set_current_vllm_config(VllmConfig()):
            self.experts = [
                shared.PoisonedExperts(shared.make_config(), FUSED_MOE_UNQUANTIZED_CONFIG) for _ in range(layers)
            ]
        self.stores = [make_store(random) for _ in range(layers)]
        self.paging = InGraphPaging(self.stores, slots, torch.device("cpu"))
        sums = PartialOutputs(max(shared.TOKENS), shared.TOP_K, shared.HIDDEN, shared.DTYPE, torch.device("cpu"))
        self.kernels = [
            InGraphKernel(experts, self.paging, layer, sums, GRAPH_TOKENS) for layer, experts in enumerate(self.experts)
        ]

    def step(self, tokens: int, random: torch.Generator) -> list[bool]:
        """Whether each layer's output is the unpaged one."""
        return [self._is_identical(layer, tokens, random) for layer in range(len(self.kernels))]

    def _is_identical(self, layer: int, tokens: int, random: torch.Generator) -> bool:
        arguments = shared.make_arguments(tokens, random)
        whole = {name: self.stores[layer].tensors[name].contiguous() for name in ("w13", "w2")}
        self.experts[layer].apply(**arguments, w1=whole["w13"], w2=whole["w2"])
        expected = arguments["output"].clone()
        arguments["output"].fill_(torch.nan)
        slots = self.paging.arena.tensors
        self.kernels[layer].run(**arguments, w1=slots["w13"], w2=slots["w2"])
        return bool(expected.isfinite().all()) and shared.same_bits(expected, arguments["output"])

    def steps_of_layers(self) -> list[float]:
        """As counted."""
        self.paging.state.refresh_mirror()
        return [pager.totals()["steps"] for pager in self.paging.pagers]


def main(results: str) -> None:
    """Take the turns."""
    ops.moe_align_block_size, ops.moe_sum = shared.align, shared.moe_sum
    tables.get_moe_configs = shared.tuned_table
    random = torch.Generator().manual_seed(0)
    models = {name: Model(LAYERS[name], SLOTS[name], random) for name in SLOTS}
    turns = [
        {"model": name, "tokens": tokens, "identical": models[name].step(tokens, random)} for name, tokens in TURNS
    ]
    steps = {name: model.steps_of_layers() for name, model in models.items()}
    Path(results).write_text(json.dumps({"turns": turns, "steps": steps}))


if __name__ == "__main__":
    main(*sys.argv[1:])
