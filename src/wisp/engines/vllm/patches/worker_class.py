"""For patches of `Worker` methods that vLLM's worker of a CPU overrides: the class to patch on this platform."""

from typing import Any


def worker_class() -> Any:
    """The one whose methods the workers of this process run."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_worker import CPUWorker

        return CPUWorker
    from vllm.v1.worker.gpu_worker import Worker

    return Worker
