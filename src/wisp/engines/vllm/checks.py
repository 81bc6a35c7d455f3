"""What cannot be paged is refused at start-up, by name, with what to do about it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from wisp.engines.vllm.formats import QUANTISATIONS
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

TESTED_VLLM = ("0.32.0", "0.33.0")
"""From the first version on, below the second."""

SPECULATIVE_METHODS = ("ngram", "mtp")
"""With `mtp` the draft model may have experts, which are paged apart from the target's."""

LOAD_FORMATS = ("auto", "safetensors", "hf", "pt", "mistral", "dummy")


def is_tested(version: str) -> bool:
    """Whether this vLLM is in the tested range."""
    parts = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    first, beyond = (tuple(int(part) for part in bound.split(".")[:2]) for bound in TESTED_VLLM)
    return first <= parts < beyond


def check_version(version: str) -> None:
    """Raise `UnsupportedError` for a vLLM outside the tested range."""
    if not is_tested(version):
        raise UnsupportedError(
            f"this wisp pages vLLM from {TESTED_VLLM[0]} to below {TESTED_VLLM[1]}, not {version}; "
            f"install vllm=={TESTED_VLLM[0]}, or a wisp made for {version}"
        )


def check_engine(vllm_config: "VllmConfig", settings: WispSettings) -> None:
    """Raise the first reason why this engine cannot be paged; runs before anything is loaded."""
    import vllm
    from vllm.platforms import current_platform

    check_version(vllm.__version__)
    model = vllm_config.model_config
    num_experts = model.get_num_experts()
    if num_experts < 1:
        raise UnsupportedError(
            f"{model.model} has no routed experts, so there is nothing to page; serve it without wisp"
        )
    for reason in _unsupported(vllm_config):
        raise UnsupportedError(reason)
    if not (current_platform.is_cpu() or current_platform.is_cuda()):
        raise UnsupportedError(
            f"paging was tried on CPUs and NVIDIA GPUs only, not on {current_platform.device_name}; serve without wisp"
        )
    on_device = settings.decides_on_device(current_platform.device_type)
    may_need_device = model.quantization is not None  # which of its kernels vLLM will choose is not known yet
    if current_platform.is_cuda() and not model.enforce_eager and not on_device:
        on_host = "" if may_need_device else ", or add --enforce-eager"
        raise UnsupportedError(
            f"policy {settings.policy} is decided on the host, which CUDA graphs cannot hold; use policy lru with "
            f"decide set to auto{on_host}"
        )
    if settings.page_lock == "off" and on_device:
        on_host = "" if may_need_device else ", or decide to host with --enforce-eager"
        raise ConfigError(
            f"page_lock is set to off, but what is decided on the device reads page-locked memory; set it to auto"
            f"{on_host}"
        )
    if settings.page_lock == "require" and not current_platform.is_cuda():
        raise ConfigError(
            f"page_lock is set to require, but an engine on {current_platform.device_type} has nothing to page-lock "
            f"memory for; set it to auto"
        )
    if settings.backing_store == "checkpoint":
        _check_files(vllm_config)
    parallel = vllm_config.parallel_config
    ranks = parallel.tensor_parallel_size if parallel.enable_expert_parallel else 1
    if ranks > 1 and current_platform.is_cpu():
        raise UnsupportedError(
            "vLLM's CPU kernels do not know which experts a rank has, and crash with --enable-expert-parallel; leave "
            "it out: --tensor-parallel-size alone gives each rank its share of every expert"
        )
    top_k = model.get_num_experts_per_tok()
    settings.check_model(num_experts // ranks, top_k, waves_by_expert=not current_platform.is_cpu(), ranks=ranks)


def doubts(vllm_config: "VllmConfig") -> Iterator[str]:
    """What is served, although no run has shown yet that its output is the unpaged one."""
    from vllm.platforms import current_platform

    ranks = vllm_config.parallel_config.world_size
    if current_platform.is_cuda() and ranks > 1 and not vllm_config.model_config.enforce_eager:
        yield (
            f"No run has shown yet that {ranks} ranks give the unpaged output bit by bit inside CUDA graphs (without "
            f"them they do); add --enforce-eager where it has to be the same"
        )


def _check_files(vllm_config: "VllmConfig") -> None:
    """Refuse what keeps the checkpoint's files from being the backing store, as far as the configuration says it."""
    model, load, parallel = vllm_config.model_config, vllm_config.load_config, vllm_config.parallel_config
    strategy = load.safetensors_load_strategy
    reason = None
    if model.quantization is not None:
        reason = f"{model.quantization} experts are laid out anew for their kernel"
    elif str(load.load_format) in ("dummy", "pt"):
        reason = f"--load-format {load.load_format} maps no files"
    elif strategy in ("eager", "torchao"):
        reason = f"--safetensors-load-strategy {strategy} maps no files"
    elif parallel.tensor_parallel_size > 1 and not parallel.enable_expert_parallel:
        reason = "--tensor-parallel-size cuts experts across the rows of their matrices (--enable-expert-parallel not)"
    if reason is not None:
        raise UnsupportedError(
            f"backing_store is set to checkpoint, but {reason}; set it to memory, or leave that option out"
        )


def _unsupported(vllm_config: "VllmConfig") -> Iterator[str]:
    from vllm import envs

    model, parallel, offload = (
        vllm_config.model_config,
        vllm_config.parallel_config,
        vllm_config.offload_config,
    )
    if model.quantization is not None and model.quantization not in QUANTISATIONS:
        yield f"{model.quantization} experts cannot be paged yet; serve a bf16 or fp16 checkpoint"
    if model.dtype not in (torch.bfloat16, torch.float16):
        yield f"{model.dtype} experts cannot be paged; add --dtype bfloat16"
    if offload.uva.cpu_offload_gb > 0:
        yield "--cpu-offload-gb moves the tensors that wisp pages; use one of the two, not both"
    if offload.prefetch.offload_group_size > 0:
        yield "--offload-group-size moves the tensors that wisp pages; use one of the two, not both"
    if parallel.data_parallel_size > 1:
        yield (
            "--data-parallel-size above 1 makes ranks run steps for one another and, with expert parallelism, compute "
            "each other's tokens, which paging does not follow yet; start one engine for each replica instead"
        )
    features = {
        "--enable-eplb": parallel.enable_eplb,
        "--enable-elastic-ep": parallel.enable_elastic_ep,
        "--enable-dbo": parallel.enable_dbo,
        "--ubatch-size above 1": parallel.ubatch_size > 1,  # the same with any number of threads
        "--prefill-context-parallel-size above 1": parallel.prefill_context_parallel_size > 1,
        "--enable-lora": vllm_config.lora_config is not None,
        "--enable-sleep-mode": model.enable_sleep_mode,
        "--enable-cumem-allocator": model.enable_cumem_allocator,  # after sleep mode, which sets it
        "--enable-fault-tolerance": parallel.enable_fault_tolerance,
        "--weight-transfer-config": vllm_config.weight_transfer_config is not None,
        "--kv-sharing-fast-prefill": vllm_config.cache_config.kv_sharing_fast_prefill,
    }
    for flag, is_on in features.items():
        if is_on:
            yield f"{flag} does not work with paging yet; leave it out"
    if envs.VLLM_ENABLE_STARTUP_PLAN:  # kept under the compiler's hash, which leaves our settings out
        yield (
            "VLLM_ENABLE_STARTUP_PLAN takes the KV's size from an earlier start, whatever its slots were; unset it, or "
            "give the size with --kv-cache-memory-bytes"
        )
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.method not in SPECULATIVE_METHODS:
        yield (
            f"speculative decoding by {speculative.method} was not tried with paging; use one of "
            f"{', '.join(SPECULATIVE_METHODS)}, or leave --speculative-config out"
        )
    load_format = str(vllm_config.load_config.load_format)
    if load_format not in LOAD_FORMATS:
        yield f"--load-format {load_format} bypasses host memory; use one of {', '.join(LOAD_FORMATS)}"
