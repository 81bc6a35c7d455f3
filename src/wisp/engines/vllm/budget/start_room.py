"""Whether a device has room for `gpu_memory`, asked before anything is loaded."""

from typing import TYPE_CHECKING, Any

from wisp.byte_text import format_bytes, size_within
from wisp.engines.vllm import failure
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import DeviceMemoryError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

CUDA_CONTEXT_BYTES = 512 << 20
"""Stated, not measured: CUDA's own context, which is there before vLLM takes its first look at the device."""


@failure.handed_over()
def requested_bytes(vllm_config: "VllmConfig", first_look: Any) -> int | None:
    """What the engine may take beside CUDA's context; None without `gpu_memory`, where vLLM's own flags say it.

    `first_look` is vLLM's `MemorySnapshot` of this rank's device.

    Raises:
        DeviceMemoryError: less is free.
    """
    settings = WispSettings.of(vllm_config)
    if settings is None or settings.gpu_memory_bytes is None:
        return None
    need, free = settings.gpu_memory_bytes - CUDA_CONTEXT_BYTES, int(first_look.free_memory)
    if free < need:
        fits = size_within(free + CUDA_CONTEXT_BYTES)
        raise DeviceMemoryError(
            need,
            free,
            f"gpu_memory {settings.gpu_memory}, less {format_bytes(CUDA_CONTEXT_BYTES)} for CUDA's context,",
            remedy=f"end what else is on {first_look.device_}, or lower gpu_memory to {fits}",
        )
    return need
