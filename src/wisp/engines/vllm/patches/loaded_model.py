"""`Worker.load_model`: refuse a model of which nothing is paged though it was asked for.

Why: a model may compute its experts without vLLM's layer of routed experts (MiniCPM, moondream3, the kernels called
mega MoE). It has experts by its configuration, and would be served unpaged, in silence.
What: calls the original, then `check` with the worker. Installed before a worker of a paged engine looks at
its device.
Versions: 0.32. Ends when: vLLM's models all use that layer.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from wisp.engines.vllm.patches.once import once


@once
def install(check: Callable[[Any], None]) -> None:
    """Wrap the method in this process; the first call counts."""
    from vllm.v1.worker.gpu_worker import Worker  # the CPU's is a subclass, and inherits it

    original = Worker.load_model

    @wraps(original)
    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        check(self)
        return result

    Worker.load_model = load_model
