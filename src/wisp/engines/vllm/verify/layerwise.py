"""Each layer against itself with all of its experts: for models that do not fit unpaged.

Inputs and outputs of some calls are kept while the paged engine runs. Afterwards one layer at a time gets all of
its experts on the device, the engine's kernel computes the same inputs without paging, and the bits are compared.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

from wisp.engines.vllm.layer import PagedRoutedExperts
from wisp.engines.vllm.local_engine import paged_layers
from wisp.engines.vllm.verify.layer_result import LayerResult

KEPT_CALLS = 12
"""Calls kept a layer, spread over the sizes of step that occur."""


@dataclass
class _Calls:
    inputs: list[tuple[torch.Tensor, ...]] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)


class LayerRecorder:
    """Keeps calls of every paged layer of an engine whose worker runs in this process."""

    def __init__(self, layers: list[PagedRoutedExperts]) -> None:
        self._calls = [(layer, _Calls()) for layer in layers]
        for layer, calls in self._calls:
            object.__setattr__(layer, "forward_paged", _keeping(layer.forward_paged, calls))

    @classmethod
    def attach(cls, engine: Any) -> "LayerRecorder":
        """Start keeping; the engine was made with its core in this process."""
        return cls(paged_layers(engine))

    def compare(self) -> list[LayerResult]:
        """Compute every kept call from all experts, layer by layer."""
        return [_compare(layer, calls) for layer, calls in self._calls]


def _keeping(forward: Any, calls: _Calls) -> Any:
    def forward_paged(*inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = forward(*inputs)
        tokens = inputs[0].shape[0]
        # at most two calls of a size: decode steps would crowd out the prefills
        if len(calls.inputs) < KEPT_CALLS and calls.sizes.get(tokens, 0) < 2:
            calls.sizes[tokens] = calls.sizes.get(tokens, 0) + 1
            calls.inputs.append(tuple(tensor.clone() for tensor in inputs[:3]))
            calls.outputs.append(output.clone())
        return output

    return forward_paged


@contextmanager
def _all_experts_on_device(layer: PagedRoutedExperts) -> Iterator[None]:
    """Within, the layer is what it would be without paging."""
    experts = layer.quant_method.moe_kernel.fused_experts
    paged_apply = experts.__dict__.pop("apply")
    slots = layer.expert_tensors.tensors
    layer.expert_tensors.bind(layer.store.on_device(torch.device(layer.moe_config.device)))
    try:
        yield
    finally:
        layer.expert_tensors.bind(slots)
        experts.apply = paged_apply


def _compare(layer: PagedRoutedExperts, calls: _Calls) -> LayerResult:
    identical, largest = 0, 0.0
    with _all_experts_on_device(layer):
        for inputs, paged in zip(calls.inputs, calls.outputs, strict=True):
            whole = RoutedExperts.forward_modular(layer, *inputs)
            if torch.equal(whole, paged):
                identical += 1
            largest = max(largest, float((whole.float() - paged.float()).abs().max()))
    return LayerResult(layer.layer_name, len(calls.inputs), identical, largest)
