"""Which formats of experts are paged, and by which of vLLM's kernels."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from wisp.errors import UnsupportedError


@dataclass(frozen=True)
class ExpertFormat:
    """One way in which a checkpoint's experts are quantised, or none."""

    words: str
    kernels: tuple[str, ...]
    """Names of vLLM's classes of experts that compute it from slots."""
    shown: tuple[str, ...] = ()
    """Those of them that a run has shown to be identical to the unpaged engine; see benchmarks/formats."""
    bits_at: str = ""
    """Where vLLM's method says how many bits a weight has, if it takes several widths; `shown` is of `USUAL_BITS`."""
    shown_8_bits: tuple[str, ...] = ()
    """As `shown`, of weights of 8 bits."""

    def shown_at(self, bits: int) -> tuple[str, ...]:
        """The kernels that a run has shown to be identical with weights of so many bits."""
        return {USUAL_BITS: self.shown, 8: self.shown_8_bits}.get(bits, ())


USUAL_BITS = 4
TRITON, WNA16, MARLIN = "TritonExperts", "TritonWNA16Experts", "MarlinExperts"
CPU = ("CPUUnquantizedExperts", "X86CPUUnquantizedExperts", "ArmCPUUnquantizedExperts")

FORMATS = {
    "UnquantizedFusedMoEMethod": ExpertFormat("bf16 or fp16", (TRITON, *CPU), shown=(TRITON, *CPU)),
    "Fp8MoEMethod": ExpertFormat("FP8", (TRITON, MARLIN), shown=(TRITON, MARLIN)),
    "CompressedTensorsW8A8Fp8MoEMethod": ExpertFormat(
        "compressed-tensors FP8", (TRITON, MARLIN), shown=(TRITON, MARLIN)
    ),
    "ModelOptFp8MoEMethod": ExpertFormat("ModelOpt FP8", (TRITON, MARLIN), shown=(TRITON, MARLIN)),
    "CompressedTensorsW8A8Mxfp8MoEMethod": ExpertFormat("compressed-tensors MXFP8", (MARLIN,), shown=(MARLIN,)),
    "ModelOptMxFp8FusedMoE": ExpertFormat("MXFP8", (MARLIN,), shown=(MARLIN,)),
    "CompressedTensorsW8A8Int8MoEMethod": ExpertFormat("compressed-tensors W8A8 int8", (TRITON,), shown=(TRITON,)),
    "CompressedTensorsWNA16MoEMethod": ExpertFormat(
        "compressed-tensors packed integer",
        (MARLIN, WNA16),
        shown=(MARLIN, WNA16),
        bits_at="num_bits",
        shown_8_bits=(MARLIN, WNA16),
    ),
    "AutoGPTQMoEMethod": ExpertFormat(
        "GPTQ", (MARLIN,), shown=(MARLIN,), bits_at="quant_config.quant_type.size_bits", shown_8_bits=(MARLIN,)
    ),
    "MoeWNA16Method": ExpertFormat(
        "moe_wna16 (GPTQ or AWQ)", (WNA16,), shown=(WNA16,), bits_at="quant_config.weight_bits"
    ),
    "AutoAWQMoEMethod": ExpertFormat("AWQ", (MARLIN,), shown=(MARLIN,)),
    "GptOssMxfp4MoEMethod": ExpertFormat("MXFP4 of gpt-oss", (MARLIN,), shown=(MARLIN,)),
    "Mxfp4MoEMethod": ExpertFormat("MXFP4", (MARLIN,), shown=(MARLIN,)),
    "CompressedTensorsW4A4Mxfp4MoEMethod": ExpertFormat("compressed-tensors MXFP4", (MARLIN,), shown=(MARLIN,)),
    "CompressedTensorsW4A4Nvfp4MoEMethod": ExpertFormat("compressed-tensors NVFP4", (MARLIN,), shown=(MARLIN,)),
    "ModelOptNvFp4FusedMoE": ExpertFormat("ModelOpt NVFP4", (MARLIN,), shown=(MARLIN,)),
}
"""By vLLM's class of quantisation method."""

QUANTISATIONS = (
    "fp8",
    "compressed-tensors",
    "auto_gptq",
    "gptq",
    "gptq_marlin",
    "auto_awq",
    "awq",
    "awq_marlin",
    "mxfp4",
    "gpt_oss_mxfp4",
    "inc",
    "moe_wna16",
    "mxfp8",
    "modelopt",
    "modelopt_fp4",
    "modelopt_mxfp8",
    "modelopt_mixed",
)
"""What vLLM calls the schemes that have such methods; not every one of their methods is paged."""

BACKENDS = {TRITON: "triton", WNA16: "triton", MARLIN: "marlin"}
"""The value of --moe-backend that asks for a kernel."""


def format_of(method: Any, *, unshown: bool = False) -> ExpertFormat:
    """The format of a layer's quantisation method; `unshown` lets pass what no run on a GPU has shown yet.

    Raises:
        UnsupportedError: the format, or the kernel that vLLM chose for it, is not paged; or no run has shown the two
            together, or this width of weights, to be identical.
    """
    name, experts_class = type(method).__name__, getattr(method, "experts_cls", None)
    known = FORMATS.get(name)
    if known is None:
        shown = ", ".join(each.words for each in FORMATS.values() if each.shown)
        raise UnsupportedError(
            f"experts of {name} cannot be paged yet; serve a checkpoint whose experts are {shown}, and without "
            f"quantisation while loading"
        )
    kernel = experts_class.__name__ if experts_class is not None else "none"
    if kernel not in known.kernels:
        raise UnsupportedError(
            f"the MoE kernel {kernel} that vLLM chose for {known.words} experts is not known to compute from slots; "
            f"add {_flags(known.kernels)} (on a GPU)"
        )
    bits = attrgetter(known.bits_at)(method) if known.bits_at else USUAL_BITS
    kernels = known.shown_at(bits)
    if unshown or kernel in kernels:
        return known
    what = known.words if bits == USUAL_BITS else f"{known.words} (of {bits} bits)"
    instead = f"add {_flags(kernels)}" if kernels else "serve a checkpoint in bf16"
    raise UnsupportedError(
        f"no run on a GPU has shown paged {what} experts, computed by {kernel}, to be identical to unpaged ones yet; "
        f"{instead}, or set unshown_formats to true and check with wisp verify"
    )


def _flags(kernels: tuple[str, ...]) -> str:
    return "--moe-backend " + " or ".join(sorted({BACKENDS[each] for each in kernels if each in BACKENDS}))
