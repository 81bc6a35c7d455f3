"""Experts that are loaded into memory end in one store, laid out as their kernel takes them."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

pytest.importorskip("vllm")

from wisp.engines.vllm.kernels.base import CPU_KIND, MARLIN_KIND, TRITON_KIND
from wisp.engines.vllm.loading.memory_loading import MemoryLoading
from wisp.engines.vllm.loading.page_locking import PageLocking
from wisp.engines.vllm.settings import WispSettings

EXPERTS = 4
SHAPES = {"w13_weight": (EXPERTS, 6, 2), "w2_weight": (EXPERTS, 2, 3)}
SETTINGS = WispSettings(expert_slots=2)


@pytest.fixture
def layer():
    layer = nn.Module()
    layer.local_num_experts, layer.layer_name = EXPERTS, "model.layers.0.mlp.experts"
    layer.moe_config = SimpleNamespace(device="cpu")
    layer.quant_method = SimpleNamespace(moe_kernel=SimpleNamespace(fused_experts=None))
    for name, shape in SHAPES.items():
        layer.register_parameter(name, nn.Parameter(torch.empty(shape), requires_grad=False))
    return layer


def begin(layer, kind, *, is_plain):
    """Its loading, and what the loader has put into the layer's parameters."""
    loading = MemoryLoading(layer, SETTINGS, kind, PageLocking(), is_plain=is_plain)
    weights = {name: torch.rand(shape) for name, shape in SHAPES.items()}
    for name, weight in weights.items():
        getattr(layer, name).data.copy_(weight)
    return loading, weights


def transposed(layer):
    """What a method does that lays experts out anew."""
    for name in SHAPES:
        weight = getattr(layer, name).data.transpose(1, 2).contiguous()
        layer.register_parameter(name, nn.Parameter(weight, requires_grad=False))


def test_unquantised_experts_stay_where_they_were_loaded(layer):
    seen = []
    loading, weights = begin(layer, TRITON_KIND, is_plain=True)
    before = loading.store
    store, tensors = loading.finish(lambda each: seen.extend(tuple(getattr(each, name).shape) for name in SHAPES))
    assert seen == [(1, 6, 2), (1, 2, 3)], "the method is shown one expert, so that it copies little"
    assert store is before
    assert all(torch.equal(store.tensors[name], weight) for name, weight in weights.items())
    assert set(tensors.tensors) == set(SHAPES)
    assert layer.w13_weight.numel() == layer.w2_weight.numel() == 0, "until they are bound to slots"


@pytest.mark.parametrize(("kind", "is_plain"), [(CPU_KIND, True), (MARLIN_KIND, False), (TRITON_KIND, False)])
def test_experts_that_are_laid_out_anew_get_a_store_of_that_layout(layer, kind, is_plain):
    loading, weights = begin(layer, kind, is_plain=is_plain)
    before = loading.store
    assert (before is not None) == is_plain
    store, _ = loading.finish(transposed)
    assert store is not before
    assert all(torch.equal(store.tensors[name], weight.transpose(1, 2)) for name, weight in weights.items())
    assert layer.w13_weight.numel() == layer.w2_weight.numel() == 0
