"""What is compared: checkpoints, kernels, modes, and what the engines are asked."""

import json
from dataclasses import dataclass

import checkpoints
from quantisations import QUANTIZATION

from wisp.engines.vllm.verify.workload import WHEN_IDLE, Arrival, Workload

GRAPH_SLOTS, EAGER_SLOTS = 6, 3
"""Of 16 experts, top-4, up to eight requests at once: a step needs more, and at 3 slots one token does."""
GRAPHS = json.dumps({"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8]})


MODES = {"graphs": (GRAPH_SLOTS, ("--compilation-config", GRAPHS)), "eager": (EAGER_SLOTS, ("--enforce-eager",))}
"""Name -> (slots, flags)."""


@dataclass(frozen=True)
class Case:
    """A checkpoint, and the kernel that is to compute it."""

    checkpoint: str
    backend: str

    @property
    def name(self) -> str:
        """Both in one word."""
        return f"{self.checkpoint}_{self.backend}"

    @property
    def flags(self) -> tuple[str, ...]:
        """For the engine."""
        quantization = QUANTIZATION.get(self.checkpoint)
        more = ("--quantization", quantization) if quantization else ()
        return ("--skip-tokenizer-init", "--moe-backend", self.backend, "--max-model-len", "1024", *more)


CASES = [
    Case("bf16", "triton"),
    Case("fp8_block", "triton"),
    Case("fp8_block", "marlin"),
    Case("fp8_tensor", "triton"),
    Case("fp8_tensor", "marlin"),
    Case("fp8_static", "triton"),
    Case("ct_fp8_static", "triton"),
    Case("ct_fp8_channel", "triton"),
    Case("ct_fp8_channel", "marlin"),
    Case("ct_fp8_block", "triton"),
    Case("ct_fp8_block", "marlin"),
    Case("modelopt_fp8", "triton"),
    Case("modelopt_fp8", "marlin"),
    Case("ct_mxfp8", "marlin"),
    Case("modelopt_mxfp8", "marlin"),
    Case("ct_int8_channel", "triton"),
    Case("gptq", "marlin"),
    Case("gptq_8_bits", "marlin"),
    Case("gptq_channel", "marlin"),
    Case("gptq_wna16", "triton"),
    Case("auto_round", "marlin"),
    Case("awq", "marlin"),
    Case("ct_int4", "marlin"),
    Case("ct_int4", "triton"),
    Case("ct_int4_zeros", "marlin"),
    Case("ct_int4_zeros", "triton"),
    Case("ct_int4_channel", "marlin"),
    Case("ct_int8", "marlin"),
    Case("ct_int8", "triton"),
    Case("gpt_oss_mxfp4", "marlin"),
    Case("gpt_oss_bf16", "triton"),
    Case("mxfp4", "marlin"),
    Case("ct_mxfp4", "marlin"),
    Case("ct_nvfp4", "marlin"),
    Case("ct_nvfp4_weights", "marlin"),
    Case("modelopt_nvfp4", "marlin"),
]


def workload(*, max_tokens: int = 16) -> Workload:
    """Batched and late requests, chunked prefill, a prefix that is shared: of token ids, for want of a tokenizer."""

    def prompt(start: int, length: int) -> tuple[int, ...]:
        return tuple(
            (start * 31 + 7 * place * (place + start)) % (checkpoints.VOCABULARY - 3) + 3 for place in range(length)
        )

    together = [Arrival(0, max_tokens, token_ids=prompt(start, 3 + 5 * start)) for start in range(6)]
    late = [Arrival(4 + 3 * i, max_tokens, token_ids=prompt(90, 200 + 100 * i)) for i in range(2)]
    sharing = [Arrival(WHEN_IDLE, max_tokens, token_ids=prompt(90, 300) + prompt(i, 9)) for i in range(2)]
    return Workload((*together, *late, *sharing))


def asked_for(names: str | None) -> list[tuple[Case, str]]:
    """Cases and modes in the order of `names`: of cases, each alone or followed by a colon and its mode; None for all.

    Raises:
        ValueError: a name that is none.
    """
    cases = {each.name: each for each in CASES}
    found = []
    for name in names.split(",") if names else cases:
        case, _, mode = name.partition(":")
        if case not in cases or mode not in ("", *MODES):
            raise ValueError(f"unknown case {name}; known are {', '.join(cases)}, and :graphs or :eager behind them")
        found += [(cases[case], each) for each in ((mode,) if mode else MODES)]
    return found
