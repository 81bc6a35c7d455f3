"""What a running engine's worker holds of its GPU, and where its paging is decided; for long runs under load.

wisp serve MODEL --expert-slots 8 --worker-extension-cls wisp.engines.vllm.worker_memory.WorkerMemoryExtension
curl -X POST URL/collective_rpc -d '{"method": "wisp_device_memory"}'    # a server with VLLM_SERVER_DEV_MODE=1
"""

from typing import Any

import torch

from wisp.engines.vllm import workers
from wisp.engines.vllm.integrity import IntegrityExtension


class WorkerMemoryExtension(IntegrityExtension):
    """For `--worker-extension-cls`: the integrity check, and this."""

    def wisp_device_memory(self) -> dict[str, Any]:
        """Bytes of PyTorch's allocator, which other processes on the GPU do not disturb; zeros without a GPU.

        `decided_on` is `device`, `host`, or None where nothing is paged.
        """
        has_gpu = torch.cuda.is_available()
        return {
            "allocated_bytes": torch.cuda.memory_allocated() if has_gpu else 0,
            "reserved_bytes": torch.cuda.memory_reserved() if has_gpu else 0,
            "decided_on": self._decided_on(),
        }

    def _decided_on(self) -> str | None:
        paging = workers.of_engine(self.vllm_config)
        if paging is None:
            return None
        if paging.in_graph is not None:
            return "device"
        return "host" if paging.pagers else None
