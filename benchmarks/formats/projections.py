"""How one projection of one expert is drawn, format by format: random, but finite, and drawn in the format itself.

So nothing here has to know how to quantise: every bit pattern of an integer or a 4-bit float is a number. A function
takes outputs, inputs and a generator, and gives tensors by the ends of their names, shaped and named as published
checkpoints have them.
"""

from collections.abc import Callable

import torch

GROUP, BLOCK, MX_GROUP, NV_GROUP = 128, 128, 32, 16
"""Values that share a scale: in integers, in FP8 by blocks (each way), in MXFP4 and MXFP8, in NVFP4."""
SPREAD = 0.1
"""Standard deviation of the weights: so much that another expert makes other logits."""
FP4_SPREAD = 2.9
"""Standard deviation of 4-bit floats whose bits are drawn evenly."""

Tensors = dict[str, torch.Tensor]
Projection = Callable[[int, int, torch.Generator], Tensors]


def normal(*shape: int, random: torch.Generator, spread: float = SPREAD) -> torch.Tensor:
    """Numbers in bf16."""
    return (torch.randn(shape, generator=random) * spread).to(torch.bfloat16)


def octets(*shape: int, random: torch.Generator, low: int = 0, high: int = 256) -> torch.Tensor:
    """Bytes from `low` to below `high`."""
    return torch.randint(low, high, shape, generator=random, dtype=torch.uint8)


def mx_scales(*shape: int, random: torch.Generator) -> torch.Tensor:
    """Exponents, biased by 127, for 4-bit floats."""
    return octets(*shape, random=random, low=120, high=123)  # 2 to the power of -7 .. -5


def _words(*shape: int, random: torch.Generator) -> torch.Tensor:
    return octets(*shape, 4, random=random).view(torch.int32).squeeze(-1)


def _around(*shape: int, random: torch.Generator, value: float) -> torch.Tensor:
    """Between half and one and a half of `value`, float32."""
    return (torch.rand(shape, generator=random) + 0.5) * value


def plain(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """Not quantised."""
    return {"weight": normal(outputs, inputs, random=random)}


def _fp8(outputs: int, inputs: int, random: torch.Generator) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=random).to(torch.float8_e4m3fn)


def _block_scales(outputs: int, inputs: int, random: torch.Generator) -> torch.Tensor:
    return _around(-(-outputs // BLOCK), -(-inputs // BLOCK), random=random, value=SPREAD)


def fp8_block(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """One scale a block of rows and columns, by the name that Qwen and DeepSeek give it."""
    return {
        "weight": _fp8(outputs, inputs, random),
        "weight_scale_inv": _block_scales(outputs, inputs, random),
    }


def ct_fp8_block(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """The same by compressed-tensors' name."""
    return {"weight": _fp8(outputs, inputs, random), "weight_scale": _block_scales(outputs, inputs, random)}


def fp8_tensor(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """One scale a projection."""
    return {"weight": _fp8(outputs, inputs, random), "weight_scale": _around(random=random, value=SPREAD)}


def fp8_static(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """With one for the input too; gate and up see the same, so it is a property of the layer."""
    return {**fp8_tensor(outputs, inputs, random), "input_scale": torch.tensor(0.02)}


def fp8_channel(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """One scale an output."""
    return {"weight": _fp8(outputs, inputs, random), "weight_scale": _around(outputs, 1, random=random, value=SPREAD)}


def mxfp8(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """One exponent, as a byte, for 32 values of FP8."""
    scale = octets(outputs, inputs // MX_GROUP, random=random, low=123, high=126)
    return {"weight": _fp8(outputs, inputs, random), "weight_scale": scale}


def int8_channel(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """One scale an output, integers of 8 bits that are not packed."""
    scale = _around(outputs, 1, random=random, value=SPREAD / 74)  # 74: the spread of -128 .. 127
    return {"weight": octets(outputs, inputs, random=random).view(torch.int8), "weight_scale": scale}


def _integer_scales(*shape: int, bits: int, random: torch.Generator) -> torch.Tensor:
    spread = {4: 4.6, 8: 74.0}[bits]  # of integers whose bits are drawn evenly
    return _around(*shape, random=random, value=SPREAD / spread).to(torch.bfloat16)


def gptq(
    outputs: int, inputs: int, random: torch.Generator, *, bits: int = 4, group: int = GROUP, indexed: bool = True
) -> Tensors:
    """Packed along the inputs, `group` of which share a scale; `indexed` if each input names its group."""
    groups, packed = inputs // group, 32 // bits
    zeros = {4: 0x77777777, 8: 0x7F7F7F7F}[bits]  # half of the range, less one, in each
    tensors = {
        "qweight": _words(inputs // packed, outputs, random=random),
        "scales": _integer_scales(groups, outputs, bits=bits, random=random),
        "qzeros": torch.full((groups, outputs // packed), zeros, dtype=torch.int32),
    }
    return {**tensors, "g_idx": torch.arange(inputs, dtype=torch.int32) // group} if indexed else tensors


def gptq_channel(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """One scale an output, where the order of the inputs makes no difference."""
    return gptq(outputs, inputs, random, group=inputs)


def awq(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """Packed along the outputs, with zero points."""
    groups = inputs // GROUP
    return {
        "qweight": _words(inputs, outputs // 8, random=random),
        "scales": _integer_scales(groups, outputs, bits=4, random=random),
        "qzeros": _words(groups, outputs // 8, random=random),
    }


def packed(outputs: int, inputs: int, random: torch.Generator, *, bits: int = 4, channel: bool = False) -> Tensors:
    """Integers as compressed-tensors packs them; with `channel` one scale an output."""
    return {
        "weight_packed": _words(outputs, inputs * bits // 32, random=random),
        "weight_scale": _integer_scales(outputs, 1 if channel else inputs // GROUP, bits=bits, random=random),
        "weight_shape": torch.tensor([outputs, inputs]),
    }


def packed_with_zeros(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """The same with zero points."""
    zeros = _words(outputs // 8, inputs // GROUP, random=random)
    return {**packed(outputs, inputs, random), "weight_zero_point": zeros}


def mxfp4(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """One exponent for 32 values of 4 bits."""
    return {
        "weight": octets(outputs, inputs // 2, random=random),
        "weight_scale": mx_scales(outputs, inputs // MX_GROUP, random=random),
    }


def ct_mxfp4(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """The same by compressed-tensors' name."""
    tensors = mxfp4(outputs, inputs, random)
    return {"weight_packed": tensors["weight"], "weight_scale": tensors["weight_scale"]}


def _nvfp4(outputs: int, inputs: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    scale = _around(outputs, inputs // NV_GROUP, random=random, value=100.0).to(torch.float8_e4m3fn)
    return octets(outputs, inputs // 2, random=random), scale


def ct_nvfp4(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """compressed-tensors divides by the scales of whole projections and inputs."""
    weight, scale = _nvfp4(outputs, inputs, random)
    return {
        "weight_packed": weight,
        "weight_scale": scale,
        "weight_global_scale": torch.tensor([100.0 * FP4_SPREAD / SPREAD]),
        "input_global_scale": torch.tensor([100.0]),
    }


def ct_nvfp4_weights(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """Without a scale for the input, which is not quantised."""
    return {name: each for name, each in ct_nvfp4(outputs, inputs, random).items() if name != "input_global_scale"}


def modelopt_nvfp4(outputs: int, inputs: int, random: torch.Generator) -> Tensors:
    """ModelOpt multiplies by them."""
    weight, scale = _nvfp4(outputs, inputs, random)
    return {
        "weight": weight,
        "weight_scale": scale,
        "weight_scale_2": torch.tensor(SPREAD / FP4_SPREAD / 100.0),
        "input_scale": torch.tensor(0.01),
    }
