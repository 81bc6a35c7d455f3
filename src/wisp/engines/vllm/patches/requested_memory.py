"""`vllm.v1.worker.gpu_worker.request_memory`: what the engine may take of its device is `gpu_memory`, if that is given.

Why: vLLM compares a share of the whole device with what is free once CUDA's context is there, and its error speaks of
`gpu_memory_utilization`, which nobody has set.
What: asks `answer` with the engine's configuration and vLLM's first look at the device; where that is None, calls the
original. Installed before a worker of a paged engine looks at its device.
Versions: 0.32. Ends when: vLLM takes an absolute size.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from wisp.engines.vllm.patches.once import once


@once
def install(answer: Callable[[Any, Any], int | None]) -> None:
    """Replace the name where this process's worker uses it; the first call counts."""
    from vllm.config import get_current_vllm_config
    from vllm.v1.worker import gpu_worker

    original = gpu_worker.request_memory

    @wraps(original)
    def request_memory(init_snapshot: Any, *args: Any, **kwargs: Any) -> int:
        requested = answer(get_current_vllm_config(), init_snapshot)
        return original(init_snapshot, *args, **kwargs) if requested is None else requested

    gpu_worker.request_memory = request_memory
