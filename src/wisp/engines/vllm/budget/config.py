"""vLLM's own settings of memory, where `gpu_memory` is to be divided: what contradicts it, and what has to agree."""

import os
from typing import TYPE_CHECKING, Any

from wisp.engines.vllm.budget.plan_inputs import PlanInputs
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import ConfigError
from wisp.pager.host_memory import HostMemory
from wisp.units import format_bytes

if TYPE_CHECKING:
    from vllm.config import VllmConfig

KV_SPACE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"


def go_by_budget(engine_args: Any, vllm_config: "VllmConfig", settings: WispSettings) -> None:
    """Have vLLM take no more than the budget, from its first look at the device on.

    Args:
        engine_args: what the user gave to vLLM.
        vllm_config: what vLLM made of it; changed.
        settings: with a budget.

    Raises:
        ConfigError: another setting sizes the KV too, or the machine has less than the budget. `PlanInputs.read` has
            more.
    """
    from vllm.platforms import current_platform

    total = settings.gpu_memory_bytes
    assert total is not None, "there is a budget to go by"
    _refuse_contradictions(engine_args)
    _refuse_unlike_ranks(vllm_config.parallel_config)
    if vllm_config.speculative_config is not None:
        raise ConfigError(
            "with --speculative-config gpu_memory cannot be divided yet; set the split by hand with expert_slots and "
            "--kv-cache-memory-bytes"
        )
    PlanInputs.read(vllm_config, settings)  # what is wrong with them is told before a model is loaded
    if current_platform.is_cpu():
        if os.environ.get(KV_SPACE_VARIABLE):
            raise ConfigError(
                f"{KV_SPACE_VARIABLE} sizes the KV that gpu_memory is to be divided for; unset it, or give "
                f"expert_slots without gpu_memory"
            )
        room = HostMemory.read()
        if total > room.available_bytes:
            raise ConfigError(
                f"gpu_memory is {settings.gpu_memory}, which on a CPU is host memory for slots and KV, but "
                f"{room.limited_by} is {format_bytes(room.available_bytes)}; give less"
            )
        # An engine on a CPU otherwise takes its share of all memory, and refuses to start where that is not free.
        vllm_config.cache_config.kv_cache_memory_bytes = total
        return
    device_bytes = int(current_platform.get_device_total_memory())
    if total > device_bytes:
        raise ConfigError(
            f"gpu_memory is {settings.gpu_memory} but {current_platform.get_device_name()} has "
            f"{format_bytes(device_bytes)}; give less"
        )
    vllm_config.cache_config.gpu_memory_utilization = total / device_bytes


def _refuse_contradictions(engine_args: Any) -> None:
    """Flags that size the KV by themselves; vLLM has no way to tell a default from the same value given."""
    default = type(engine_args).gpu_memory_utilization
    given = {
        "--kv-cache-memory-bytes": engine_args.kv_cache_memory_bytes is not None,
        "--num-gpu-blocks-override": engine_args.num_gpu_blocks_override is not None,
        "--gpu-memory-utilization": engine_args.gpu_memory_utilization != default,
    }
    for flag, is_given in given.items():
        if is_given:
            raise ConfigError(f"{flag} and gpu_memory both say how much memory KV gets; use one of the two, not both")


def _refuse_unlike_ranks(parallel: Any) -> None:
    """All ranks have to choose one split, which is told for ranks that hold alike."""
    unlike = {
        "--pipeline-parallel-size": parallel.pipeline_parallel_size > 1,
        "--data-parallel-size": parallel.data_parallel_size > 1,
        "--enable-expert-parallel": parallel.enable_expert_parallel,
    }
    for flag, is_given in unlike.items():
        if is_given:
            raise ConfigError(
                f"with {flag} ranks hold unlike parts of the model, for which gpu_memory cannot be divided yet; set "
                f"the split by hand with expert_slots and --kv-cache-memory-bytes"
            )
