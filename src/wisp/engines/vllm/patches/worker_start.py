"""`WorkerWrapperBase.init_device`: the last moment before a worker looks at its device and loads its model.

Why: what is to be changed of `Worker` before anything is paged cannot wait for the first paged layer, and must not be
imported when plug-ins are registered, when vLLM has not yet put its kernels for this platform in place.
What: calls `prepare` with the engine's configuration, then the original.
Versions: 0.32. Ends when: vLLM offers plug-ins a hook on its workers.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any


def install(prepare: Callable[[Any], None]) -> None:
    """Wrap the method once."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    original = WorkerWrapperBase.init_device

    @wraps(original)
    def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        prepare(self.vllm_config)
        return original(self, *args, **kwargs)

    WorkerWrapperBase.init_device = init_device
