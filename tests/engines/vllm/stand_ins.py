"""vLLM's kernels for a GPU on a machine without one: Triton's interpreter, and stand-ins for what is CUDA only.

Importing this prepares Triton; `install` puts the stand-ins in. They compute what their originals are documented to,
but for Marlin, whose layouts of weights are its own: its repacking only reshapes, and its product mixes the bytes of
everything that belongs to an expert, so that any wrong byte shows.
"""

import interpreted  # noqa: F401
import torch
import vllm._custom_ops as ops
from vllm.model_executor.layers.fused_moe import utils as moe_utils
from vllm.model_executor.layers.fused_moe.experts import marlin_moe, triton_moe
from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExperts

_C = torch.library.Library("_C", "FRAGMENT")
FP8_MAX = torch.finfo(torch.float8_e4m3fn).max


def install() -> None:
    """Let vLLM choose its kernels for a GPU, and run them here."""
    for experts in (triton_moe.TritonExperts, triton_moe.TritonWNA16Experts, marlin_moe.MarlinExpertsBase):
        experts._supports_current_device = staticmethod(lambda: True)
    # what the scheme needs of the device is asked of the platform too; their own lists are tried on a GPU
    FusedMoEExperts.is_supported_config = staticmethod(lambda *_: (True, None))
    triton_moe.TritonExperts.is_supported_config = staticmethod(lambda *_: (True, None))
    torch.accelerator.empty_cache = lambda: None
    ops.moe_align_block_size, ops.moe_sum = align, moe_sum
    ops.scaled_fp8_quant = scaled_fp8_quant
    moe_utils.per_token_quant_int8 = per_token_quant_int8
    _C.define("swigluoai_and_mul(Tensor(a!) out, Tensor values, float alpha=1.702, float limit=7.0) -> ()")
    _C.impl("swigluoai_and_mul", swigluoai_and_mul, "CPU")
    ops.silu_and_mul_per_block_quant = silu_and_mul_per_block_quant
    ops.gptq_marlin_moe_repack = ops.awq_marlin_moe_repack = repack_all
    ops.gptq_marlin_repack = ops.awq_marlin_repack = repack
    ops.moe_wna16_marlin_gemm = marlin_product
    marlin_moe.get_marlin_workspace = lambda device: torch.zeros(1, dtype=torch.int32, device=device)


def align(topk_ids, num_experts, block_size, sorted_ids, expert_ids, num_padded, expert_map=None, scatter_idx=None):
    """Sort choices by expert, each expert padded to whole blocks; with a map, drop the choices that map to -1."""
    flat = topk_ids.flatten().long()
    owner = flat if expert_map is None else expert_map[flat].long()
    sorted_ids.fill_(flat.numel())
    expert_ids.fill_(-7)  # no kernel may look beyond `num_padded`
    end = 0
    for expert in range(num_experts):
        choices = torch.nonzero(owner == expert).flatten()
        blocks = -(-len(choices) // block_size)
        sorted_ids[end : end + len(choices)] = choices.int()
        expert_ids[end // block_size : end // block_size + blocks] = expert
        end += blocks * block_size
    num_padded.fill_(end)


def moe_sum(choices, output, topk_ids=None, expert_map=None):
    """Add up the choices of each token in their order; with a map, those alone that do not map to -1."""
    total = torch.zeros(output.shape, dtype=torch.float32)
    for rank in range(choices.shape[1]):
        chosen = choices[:, rank].float()
        if expert_map is not None:
            chosen = torch.where((expert_map[topk_ids[:, rank].long()] >= 0).unsqueeze(-1), chosen, 0.0)
        total += chosen
    output.copy_(total)


def scaled_fp8_quant(values, scale=None, *_, use_per_token_if_dynamic=False, **__):
    """To FP8 with the scale that is given, or with one of each row or of all, so that the largest value fits."""
    wide = values.float()
    if scale is None:
        largest = wide.abs().amax(dim=1, keepdim=True) if use_per_token_if_dynamic else wide.abs().max().reshape(1)
        scale = (largest / FP8_MAX).clamp(min=1e-12)
    return (wide / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale


def per_token_quant_int8(values):
    """To int8 with one scale a row; the original asks the GPU's own library to round."""
    wide = values.float()
    scale = wide.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10) / 127
    return (wide / scale).round().to(torch.int8), scale


def swigluoai_and_mul(out, values, alpha=1.702, limit=7.0):
    """gpt-oss's activation of gate and up, which take turns."""
    gate, up = values[..., ::2].float().clamp(max=limit), values[..., 1::2].float().clamp(-limit, limit)
    out.copy_((up + 1) * gate * torch.sigmoid(alpha * gate))


def silu_and_mul_per_block_quant(values, group_size, quant_dtype, *_, **__):
    """silu(first half) * second half, to FP8 with one scale a group of a row."""
    gate, up = values.float().chunk(2, dim=-1)
    product = (torch.nn.functional.silu(gate) * up).view(values.shape[0], -1, group_size)
    scale = (product.abs().amax(dim=-1, keepdim=True) / FP8_MAX).clamp(min=1e-12)
    return (product / scale).to(quant_dtype).flatten(1), scale.squeeze(-1)


def repack(b_q_weight, size_k, size_n, num_bits, **_):
    """[k / pack, n] words of 32 bits in the shape that Marlin's have."""
    return b_q_weight.contiguous().view(torch.int32).reshape(size_k // 16, size_n * (num_bits // 2))


def repack_all(weights, size_k, size_n, num_bits, **_):
    """As `repack`, for all experts."""
    return weights.contiguous().view(torch.int32).reshape(weights.shape[0], size_k // 16, size_n * (num_bits // 2))


def marlin_product(
    values,
    output,
    weights,
    bias,
    scales,
    _a_scales,
    global_scale,
    zeros,
    _workspace,
    sorted_ids,
    expert_ids,
    num_padded,
    topk_weights,
    *,
    moe_block_size,
    top_k,
    mul_topk_weights,
    size_m,
    size_n,
    **_,
):
    """Each row times a matrix made of the bytes of its expert; the size of the blocks leaves its mark too."""
    assert expert_ids.dtype == torch.int32
    for each in (weights, bias, scales, global_scale, zeros):
        assert each is None or each.is_contiguous()
    output.fill_(torch.nan)
    for block in range(int(num_padded) // moe_block_size):
        row = int(expert_ids[block])
        assert row >= 0, "Marlin skips no block"
        parts = [_mixed(each, row) for each in (weights, scales, zeros, global_scale) if each is not None]
        factor = sum(parts) / len(parts)
        for choice in sorted_ids[block * moe_block_size : (block + 1) * moe_block_size].tolist():
            if choice >= size_m * top_k:
                continue
            value = values[choice // top_k].float().mean() * factor + (block + moe_block_size) / 1024
            result = torch.sin(value + torch.arange(size_n) / size_n)
            if bias is not None:
                result = result + _at(bias, row).float()
            if mul_topk_weights:
                result = result * topk_weights.flatten()[choice]
            output[choice] = result.to(output.dtype)
    return output


def _at(tensor, row):
    """Row `row` of memory, though a kernel is shown fewer rows."""
    inner = tensor.shape[1:]
    return tensor.as_strided(inner, tensor.stride()[1:], tensor.storage_offset() + row * tensor.stride(0))


def _mixed(tensor, row) -> float:
    """A number that depends on every byte."""
    content = _at(tensor, row).contiguous().reshape(-1).view(torch.uint8).double()
    return float((content * torch.linspace(0.5, 1.5, len(content), dtype=torch.float64)).mean()) / 128
