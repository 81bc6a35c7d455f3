"""`Worker.compile_or_warm_up_model`: forget what the warm-up paged.

Why: the engine profiles and warms up with made-up tokens, whose experts say nothing about the workload and whose
faults would stand in the counters for ever.
What: calls the original, then resets the page tables and the counters. Installed by the first paged layer only.
Versions: 0.32. Ends when: vLLM tells layers that a forward pass is a dummy.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

_installed = False


def install(forget: Callable[[Any], None]) -> None:
    """Call `forget` with the engine's configuration after every warm-up in this process; the first call counts."""
    global _installed
    if _installed:
        return
    _installed = True
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_worker import CPUWorker as Worker
    else:
        from vllm.v1.worker.gpu_worker import Worker

    original = Worker.compile_or_warm_up_model

    @wraps(original)
    def compile_or_warm_up_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        forget(self.vllm_config)
        return result

    Worker.compile_or_warm_up_model = compile_or_warm_up_model
