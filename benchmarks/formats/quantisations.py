"""Each format's name here, what its checkpoint says of itself (`quantization_config`), and how an expert is drawn."""

from functools import partial
from typing import Any

import projections
from projections import BLOCK, GROUP, MX_GROUP, NV_GROUP, Projection

LAYERS = 2
ATTENTION = [
    f"model.layers.{layer}.self_attn.{name}"
    for layer in range(LAYERS)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj")
]
PLAIN_LAYERS = [*ATTENTION, *(f"model.layers.{layer}.mlp.gate" for layer in range(LAYERS))]
"""What is not quantised, by name."""


def _compressed_tensors(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {**group, "format": form}},
        "ignore": ["re:.*self_attn.*", "re:.*mlp.gate$", "lm_head"],
    }


def _numbers(kind: str, bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "num_bits": bits, "strategy": strategy, "symmetric": True, "dynamic": False, **more}


def _fp8(**more: Any) -> dict[str, Any]:
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": PLAIN_LAYERS, **more}


def _gptq(**more: Any) -> dict[str, Any]:
    common = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True, "lm_head": False}
    return {**common, **more}


def _modelopt(algorithm: str, **more: Any) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head", *PLAIN_LAYERS], **more}


def _modelopt_groups(**numbers: Any) -> dict[str, Any]:
    """Weights and inputs of the same kind, as ModelOpt writes them."""
    each = {"dynamic": False, "type": "float", **numbers}
    return {"group_0": {"input_activations": each, "weights": each, "targets": ["Linear"]}}


_MX = {"group_size": MX_GROUP, "scale_dtype": "torch.uint8"}

FORMATS: dict[str, tuple[dict[str, Any] | None, Projection | None]] = {
    "bf16": (None, projections.plain),
    "fp8_block": (_fp8(weight_block_size=[BLOCK, BLOCK]), projections.fp8_block),
    "fp8_tensor": (_fp8(), projections.fp8_tensor),
    "fp8_static": (_fp8(activation_scheme="static"), projections.fp8_static),
    "ct_fp8_static": (
        _compressed_tensors("float-quantized", _numbers("float", 8, "tensor"), _numbers("float", 8, "tensor")),
        projections.fp8_static,
    ),
    "ct_fp8_channel": (
        _compressed_tensors(
            "float-quantized", _numbers("float", 8, "channel"), _numbers("float", 8, "token", dynamic=True)
        ),
        projections.fp8_channel,
    ),
    "ct_fp8_block": (
        _compressed_tensors(
            "float-quantized",
            _numbers("float", 8, "block", block_structure=[BLOCK, BLOCK]),
            _numbers("float", 8, "group", group_size=BLOCK, dynamic=True),
        ),
        projections.ct_fp8_block,
    ),
    "modelopt_fp8": (_modelopt("FP8", config_groups=_modelopt_groups(num_bits=8)), projections.fp8_static),
    "ct_mxfp8": (
        _compressed_tensors(
            "mxfp8-quantized",
            _numbers("float", 8, "group", **_MX),
            _numbers("float", 8, "group", **_MX, dynamic=True),
        ),
        projections.mxfp8,
    ),
    "modelopt_mxfp8": (_modelopt("MXFP8", group_size=MX_GROUP), projections.mxfp8),
    "ct_int8_channel": (
        _compressed_tensors("int-quantized", _numbers("int", 8, "channel"), _numbers("int", 8, "token", dynamic=True)),
        projections.int8_channel,
    ),
    "gptq": (_gptq(), projections.gptq),
    "gptq_8_bits": (_gptq(bits=8), partial(projections.gptq, bits=8)),
    "gptq_channel": (_gptq(group_size=-1, desc_act=True), projections.gptq_channel),
    "gptq_wna16": (_gptq(dynamic={"-:.*self_attn.*": {}, r"-:.*mlp\.gate": {}}), projections.gptq),
    "auto_round": (
        {
            "quant_method": "auto-round",
            "packing_format": "auto_round:auto_gptq",
            "data_type": "int",
            "bits": 4,
            "group_size": GROUP,
            "sym": True,
            "block_name_to_quantize": "model.layers",
            "extra_config": {name: {"bits": 16, "data_type": "float"} for name in PLAIN_LAYERS},
        },
        partial(projections.gptq, indexed=False),
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
        projections.awq,
    ),
    "ct_int4": (
        _compressed_tensors("pack-quantized", _numbers("int", 4, "group", group_size=GROUP)),
        projections.packed,
    ),
    "ct_int4_zeros": (
        _compressed_tensors("pack-quantized", _numbers("int", 4, "group", group_size=GROUP) | {"symmetric": False}),
        projections.packed_with_zeros,
    ),
    "ct_int4_channel": (
        _compressed_tensors("pack-quantized", _numbers("int", 4, "channel")),
        partial(projections.packed, channel=True),
    ),
    "ct_int8": (
        _compressed_tensors("pack-quantized", _numbers("int", 8, "group", group_size=GROUP)),
        partial(projections.packed, bits=8),
    ),
    "mxfp4": ({"quant_method": "mxfp4"}, projections.mxfp4),
    "ct_mxfp4": (
        _compressed_tensors(
            "mxfp4-pack-quantized",
            _numbers("float", 4, "group", **_MX),
            _numbers("float", 4, "group", **_MX, dynamic=True),
        ),
        projections.ct_mxfp4,
    ),
    "gpt_oss_mxfp4": ({"quant_method": "mxfp4"}, None),
    "gpt_oss_bf16": (None, None),
    "ct_nvfp4": (
        _compressed_tensors(
            "nvfp4-pack-quantized",
            _numbers("float", 4, "tensor_group", group_size=NV_GROUP),
            _numbers("float", 4, "tensor_group", group_size=NV_GROUP, dynamic="local"),
        ),
        projections.ct_nvfp4,
    ),
    "ct_nvfp4_weights": (
        _compressed_tensors("nvfp4-pack-quantized", _numbers("float", 4, "tensor_group", group_size=NV_GROUP)),
        projections.ct_nvfp4_weights,
    ),
    "modelopt_nvfp4": (
        _modelopt("NVFP4", config_groups=_modelopt_groups(num_bits=4, group_size=NV_GROUP)),
        projections.modelopt_nvfp4,
    ),
}
"""Name -> (the `quantization_config`, how one projection of one expert is drawn; None for all experts at once)."""

QUANTIZATION = {"gptq_wna16": "moe_wna16"}
"""What --quantization has to say, where vLLM would choose other kernels by itself."""
