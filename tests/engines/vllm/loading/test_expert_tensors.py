"""Every place that holds a tensor of the experts is found and pointed at slots, or the layer is refused."""

import functools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

pytest.importorskip("vllm")

from vllm.model_executor.layers.fused_moe.config import FusedMoEQuantConfig, biased_moe_quant_config
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

from wisp.engines.vllm.loading.expert_tensors import ExpertTensors
from wisp.errors import UnsupportedError

EXPERTS, ROWS = 4, 7


class Experts:
    """As vLLM's: it keeps the configuration that it was made with."""

    __module__ = "vllm.stand_in"

    def __init__(self, quant_config):
        self.quant_config = quant_config


class Method(QuantizeMethodBase):
    """As vLLM's, once the weights are loaded."""

    create_weights = apply = None

    def __init__(self, quant_config):
        self.moe_quant_config = quant_config
        self.moe_kernel = SimpleNamespace(fused_experts=Experts(quant_config))
        self.experts = self.moe_kernel.fused_experts


Method.__module__ = "vllm.stand_in"
Method.__abstractmethods__ = frozenset()


@pytest.fixture
def layer():
    module = nn.Module()
    for name, shape in {
        "w13_weight_packed": (EXPERTS, 6, 2),
        "w2_weight_packed": (EXPERTS, 2, 3),
        "w13_scale": (EXPERTS, 6),
        "w2_scale": (EXPERTS,),
        "w13_g_idx": (EXPERTS, 2),
        "w13_input_scale": (EXPERTS,),
    }.items():
        module.register_parameter(name, nn.Parameter(torch.rand(shape), requires_grad=False))
    module.w13_weight, module.w2_weight = module.w13_weight_packed, module.w2_weight_packed
    return module


def make_method(layer):
    config = FusedMoEQuantConfig.make(
        torch.float8_e4m3fn, w1_scale=layer.w13_scale, w2_scale=layer.w2_scale.data, a1_scale=layer.w13_input_scale
    )
    return Method(config)


def slots_of(tensors):
    return {name: torch.zeros(ROWS, *tensor.shape[1:]) for name, tensor in tensors.items()}


def test_the_layer_and_all_that_took_a_tensor_from_it_are_pointed_at_the_slots(layer):
    method = make_method(layer)
    found = ExpertTensors(layer, method, EXPERTS)
    assert set(found.tensors) == {"w13_weight_packed", "w2_weight_packed", "w13_scale", "w2_scale"}
    slots = slots_of(found.tensors)
    found.bind(slots)
    assert layer.w13_weight is layer.w13_weight_packed is slots["w13_weight_packed"]
    assert layer.w2_weight is slots["w2_weight_packed"]
    assert method.experts.quant_config.w1_scale is method.moe_quant_config.w1_scale is slots["w13_scale"]
    assert method.moe_quant_config.w2_scale is slots["w2_scale"]
    assert dict(layer.named_parameters()).keys() == {"w13_input_scale"}


def test_a_method_that_is_a_module_is_searched_too():
    """As that of unquantised experts is, whose kernel takes the biases."""

    class ModuleMethod(nn.Module):
        __module__ = "vllm.stand_in"

        def __init__(self, quant_config):
            super().__init__()
            self.moe_quant_config = quant_config
            self.moe_kernel = SimpleNamespace(fused_experts=Experts(quant_config))

    layer = nn.Module()
    for name, shape in {"w13_weight": (EXPERTS, 6, 2), "w13_bias": (EXPERTS, 6), "w2_weight": (EXPERTS, 2, 3)}.items():
        layer.register_parameter(name, nn.Parameter(torch.rand(shape), requires_grad=False))
    method = ModuleMethod(biased_moe_quant_config(layer.w13_bias, None))
    found = ExpertTensors(layer, method, EXPERTS)
    slots = slots_of(found.tensors)
    found.bind(slots)
    assert method.moe_quant_config.w1_bias is layer.w13_bias is slots["w13_bias"]


def test_what_only_loading_needed_is_gone_and_what_all_experts_share_stays(layer):
    method = make_method(layer)
    shared = layer.w13_input_scale
    ExpertTensors(layer, method, EXPERTS).bind(slots_of(ExpertTensors(layer, method, EXPERTS).tensors))
    assert layer.w13_g_idx is None
    assert method.moe_quant_config.a1_scale is layer.w13_input_scale is shared


def test_what_is_released_is_kept_by_nobody(layer):
    import gc
    import weakref

    method = make_method(layer)
    found = ExpertTensors(layer, method, EXPERTS)
    storages = [weakref.ref(tensor.untyped_storage()) for tensor in found.tensors.values()]
    whole = {name: tensor.shape for name, tensor in found.tensors.items()}
    found.release()
    gc.collect()
    assert [each() for each in storages if each() is not None] == []
    assert layer.w13_weight.numel() == method.moe_quant_config.w1_scale.numel() == 0
    found.bind({name: torch.ones(shape) for name, shape in whole.items()})
    assert layer.w13_weight.shape == whole["w13_weight_packed"]


@pytest.mark.parametrize(
    ("hide", "where"),
    [
        (lambda method, tensor: setattr(method.experts, "alphas", tensor), r"experts\.alphas"),
        (lambda method, tensor: setattr(method, "tables", {"w1": [tensor]}), r"tables\['w1'\]\[0\]"),
        (lambda method, tensor: setattr(method.experts, "sizes", (tensor,)), r"sizes\[0\]"),
        (lambda method, tensor: setattr(method, "run", functools.partial(print, tensor)), r"run \(partial\)"),
        (lambda method, tensor: setattr(method, "run", lambda: tensor), r"run \(closure\)"),
    ],
)
def test_a_tensor_with_a_row_for_each_expert_that_nobody_knows_is_refused(layer, hide, where):
    method = make_method(layer)
    hide(method, torch.rand(EXPERTS, 3))
    with pytest.raises(
        UnsupportedError, match=rf"Method with Experts holds a tensor \(4, 3\) for its 4 .* in .*{where}"
    ):
        ExpertTensors(layer, method, EXPERTS)


def test_a_tensor_of_the_layer_that_is_no_parameter_is_refused(layer):
    layer.table = torch.rand(EXPERTS, 3)
    with pytest.raises(UnsupportedError, match=r"in layer\.table, which cannot be pointed at slots"):
        ExpertTensors(layer, make_method(layer), EXPERTS)


def test_a_known_tensor_where_nothing_can_be_written_is_refused(layer):
    method = make_method(layer)
    method.experts.pair = (layer.w13_scale, None)
    with pytest.raises(UnsupportedError, match=r"pair\[0\], which cannot be pointed at slots"):
        ExpertTensors(layer, method, EXPERTS)


@pytest.mark.parametrize("view", [torch.flatten, lambda tensor: tensor[:, 1:], lambda tensor: tensor[1]])
def test_a_view_of_a_known_tensor_in_another_shape_is_refused(layer, view):
    method = make_method(layer)
    method.experts.scale = view(layer.w13_scale.data)
    with pytest.raises(UnsupportedError, match=r"experts\.scale, which cannot be pointed at slots"):
        ExpertTensors(layer, method, EXPERTS)


def test_a_tensor_that_all_experts_share_may_be_anywhere(layer):
    method = make_method(layer)
    method.experts.scale = torch.rand(1).expand(EXPERTS)
    method.experts.other = torch.rand(EXPERTS + 1)
    ExpertTensors(layer, method, EXPERTS)


def test_a_layer_without_the_weights_that_its_method_reads_is_refused(layer):
    del layer.w2_weight
    with pytest.raises(UnsupportedError, match="has no w2_weight with a row for each expert"):
        ExpertTensors(layer, make_method(layer), EXPERTS)


def test_a_bias_that_nothing_known_has_taken_is_refused(layer):
    method = make_method(layer)
    layer.register_parameter("w2_bias", nn.Parameter(torch.rand(EXPERTS, 2), requires_grad=False))
    with pytest.raises(UnsupportedError, match=r"has w2_bias with a row .*, but what takes it was not found"):
        ExpertTensors(layer, method, EXPERTS)
