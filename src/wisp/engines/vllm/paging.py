"""What the paged layers of one worker share: the counters, one buffer, and a warm-up that is forgotten.

vLLM builds layers one by one and hands them nothing of ours, so they meet here, by the engine's instance id.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch

from wisp.engines.vllm import counter_files
from wisp.engines.vllm.kernels import PartialOutputs
from wisp.engines.vllm.patches import warm_up
from wisp.engines.vllm.settings import WispSettings
from wisp.pager.counters import Counters, PoolFacts
from wisp.pager.host_memory import HostMemory
from wisp.pager.pager import ExpertPager

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_workers: WeakValueDictionary[str, "WorkerPaging"] = WeakValueDictionary()
"""By instance id. The layers own theirs, so that a dropped engine takes its backing stores along."""

counters_files = counter_files.of_engine


@dataclass
class WorkerPaging:
    """The pagers of one worker, in the order of their layers."""

    settings: WispSettings
    vllm_config: "VllmConfig"
    free_memory: HostMemory = field(default_factory=HostMemory.read)
    """As it was before the first backing store was made."""
    stored_bytes: int = 0
    counters: Counters | None = None
    partial_outputs: PartialOutputs | None = None
    pagers: list[ExpertPager] = field(default_factory=list)

    @classmethod
    def of(cls, vllm_config: "VllmConfig", settings: WispSettings) -> "WorkerPaging":
        """The one of this engine, made at the first call."""
        worker = _workers.get(vllm_config.instance_id)
        if worker is None:
            worker = _workers[vllm_config.instance_id] = cls(settings, vllm_config)
            warm_up.install(_forget_warm_up)
        return worker

    def reserve(self, store_bytes: int) -> None:
        """Check one more layer's backing store against free host memory, before anything is loaded.

        All layers are taken to be alike, so that the first one already stands for the model.
        """
        layers = self.vllm_config.model_config.get_total_num_hidden_layers() if self.stored_bytes == 0 else 1
        ranks = self.vllm_config.parallel_config.world_size
        need = (self.stored_bytes + store_bytes * layers) * ranks
        self.free_memory.check(need, f"the backing store of {self.vllm_config.model_config.model}")
        self.stored_bytes += store_bytes

    def counters_for(self, facts: PoolFacts) -> Counters:
        """The worker's counters, made at the first call."""
        if self.counters is None:
            path = counter_files.path_for(self.vllm_config.instance_id, self.vllm_config.parallel_config.rank)
            capacity = self.vllm_config.model_config.get_total_num_hidden_layers()
            self.counters = Counters(facts, capacity, path)
        return self.counters

    def partial_outputs_for(self, layer: Any, device: torch.device) -> PartialOutputs:
        """The worker's buffer for choice outputs, made at the first call."""
        if self.partial_outputs is None:
            tokens = self.vllm_config.scheduler_config.max_num_batched_tokens
            self.partial_outputs = PartialOutputs(tokens, layer.top_k, layer.hidden_size, layer.params_dtype, device)
        return self.partial_outputs

    def forget_warm_up(self) -> None:
        """Start cold, with counters at zero."""
        for pager in self.pagers:
            pager.reset()
        if self.counters is not None:
            self.counters.reset()


def _forget_warm_up(instance_id: str) -> None:
    if (worker := _workers.get(instance_id)) is not None:
        worker.forget_warm_up()
