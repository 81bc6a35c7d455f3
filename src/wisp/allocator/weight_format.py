"""How many bytes a weight matrix takes in the format a checkpoint is stored in."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wisp.errors import UnsupportedError

_BYTES_OF_DTYPE = {"bfloat16": 2, "float16": 2, "float32": 4}
_NOT_CONVERTED = ("modules_to_not_convert", "ignored_layers", "ignore")


@dataclass(frozen=True)
class WeightFormat:
    """`weight_bits` a weight, and one scale (with its zero point, if any) for each block of weights."""

    name: str
    weight_bits: int
    block: tuple[int, int] | None = None
    """Rows (outputs) and columns (inputs) of the weights that share a scale; None without scales."""
    scale_bits: int = 0
    tiles: tuple[int, int] = (1, 1)
    """Multiples up to which the kernel pads an expert's width and the hidden size, where that is known."""

    @property
    def is_quantised(self) -> bool:
        """Whether a weight has fewer bits than what is computed with."""
        return self.weight_bits < 16

    @property
    def is_planar(self) -> bool:
        """Whether slots hold each tensor apart, so that a step's experts beyond them need rows too.

        So they do for Marlin, and for Triton with one scale an expert: for all quantised formats but FP8 in blocks of
        rows and columns, which vLLM gives to Triton wherever the GPU computes in FP8.
        """
        return self.is_quantised and (self.block is None or self.block[0] == 1)

    def padded(self, hidden: int, width: int) -> tuple[int, int]:
        """Hidden size and width of an expert as its kernel has them laid out."""
        width_tile, hidden_tile = self.tiles
        return -(-hidden // hidden_tile) * hidden_tile, -(-width // width_tile) * width_tile

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a [rows, columns] matrix: packed weights and scales; a last partial block has its scale too."""
        weights = -(-rows * columns * self.weight_bits // 8)
        if self.block is None:
            return weights
        return weights + -(-rows // self.block[0]) * -(-columns // self.block[1]) * self.scale_bits // 8


_MXFP8 = WeightFormat("MXFP8, groups of 32", 8, (1, 32), 8)


def plain_format(config: Mapping[str, Any]) -> WeightFormat:
    """The format of what is not quantised, by `torch_dtype` or `dtype`; bf16 where the configuration says neither.

    Raises:
        UnsupportedError: the type is not one that checkpoints are served in.
    """
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
    if dtype not in _BYTES_OF_DTYPE:
        raise UnsupportedError(
            f"weights of type {dtype!r} cannot be planned for; known are {', '.join(_BYTES_OF_DTYPE)}"
        )
    return WeightFormat({"bfloat16": "bf16", "float16": "fp16"}.get(dtype, "fp32"), 8 * _BYTES_OF_DTYPE[dtype])


def quantised_format(quantisation: Mapping[str, Any]) -> WeightFormat:
    """The format that a `quantization_config` describes: FP8 (block or tensor scales), MXFP8, MXFP4, NVFP4, int4, int8.

    Raises:
        UnsupportedError: another method, whose bytes would be a guess.
    """
    method = str(quantisation.get("quant_method", "")).lower()
    if method == "fp8":
        block = quantisation.get("weight_block_size")
        if block:
            return WeightFormat(f"FP8, {block[0]} x {block[1]} block scales", 8, (int(block[0]), int(block[1])), 32)
        return WeightFormat("FP8", 8)
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        # vLLM 0.32, `mxfp4_round_up_hidden_size_and_intermediate_size` for Marlin
        return WeightFormat("MXFP4, groups of 32", 4, (1, 32), 8, tiles=(128, 256))
    algorithm = str(quantisation.get("quant_algo", "")).upper()
    if method == "mxfp8" or (method == "modelopt" and algorithm == "MXFP8"):
        return _MXFP8
    if method == "modelopt" and algorithm == "FP8":
        return WeightFormat("FP8", 8)
    if method == "modelopt" and algorithm in ("NVFP4", "W4A16_NVFP4"):
        return WeightFormat("NVFP4, groups of 16", 4, (1, 16), 8)
    if method in ("gptq", "awq", "auto-round", "gptq_marlin", "awq_marlin"):
        bits = int(quantisation.get("bits") or quantisation.get("w_bit") or 4)
        group = int(quantisation.get("group_size") or quantisation.get("q_group_size") or 128)
        return _grouped(bits, group, zero_bits=bits)
    if method == "compressed-tensors":
        groups = list(quantisation.get("config_groups", {}).values())
        weights = groups[0].get("weights") if groups else None
        if weights and weights.get("type") == "float" and int(weights.get("num_bits", 0)) == 8:
            block = weights.get("block_structure")
            if block:
                return WeightFormat(f"FP8, {block[0]} x {block[1]} block scales", 8, (int(block[0]), int(block[1])), 32)
            return _MXFP8 if weights.get("group_size") == 32 else WeightFormat("FP8", 8)
        if weights and weights.get("type") == "float" and int(weights.get("num_bits", 0)) == 4:
            group = int(weights.get("group_size") or 16)
            return WeightFormat(f"{'MXFP4' if group == 32 else 'NVFP4'}, groups of {group}", 4, (1, group), 8)
        if weights and weights.get("type") == "int":
            return _grouped(int(weights["num_bits"]), int(weights.get("group_size") or -1), zero_bits=0)
    raise UnsupportedError(
        f"the bytes of {method or 'this'} quantisation are not known; wisp plan knows bf16, fp16, fp8, mxfp8, mxfp4, "
        f"gptq, awq, ModelOpt (FP8, MXFP8, NVFP4) and compressed-tensors (8-bit and 4-bit float, integer groups)"
    )


def is_kept_plain(quantisation: Mapping[str, Any], module: str) -> bool:
    """Whether the list of modules that are not converted names this kind of module, such as "attn"."""
    return any(module in str(entry) for key in _NOT_CONVERTED for entry in quantisation.get(key) or ())


def _grouped(bits: int, group: int, *, zero_bits: int) -> WeightFormat:
    columns = group if group > 0 else 2**31  # -1: one scale for a whole row
    what = f"groups of {group}" if group > 0 else "a scale a row"
    return WeightFormat(f"int{bits}, {what}", bits, (1, columns), 16 + zero_bits)
