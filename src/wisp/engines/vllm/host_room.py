"""Whether a worker's backing stores fit into host memory, asked before each layer is made."""

import os
from typing import TYPE_CHECKING

from wisp.engines.vllm import memory_claims
from wisp.engines.vllm.memory_claims import MemoryClaims
from wisp.engines.vllm.moe_layers import moe_layers
from wisp.engines.vllm.settings import WispSettings
from wisp.pager.host_memory import HostMemory
from wisp.units import parse_bytes

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class HostRoom:
    """What one worker's target or draft model takes of its machine's memory; its claim lapses when it is dropped."""

    def __init__(self, vllm_config: "VllmConfig", settings: WispSettings, *, is_draft: bool) -> None:
        self._vllm_config, self._settings, self._is_draft = vllm_config, settings, is_draft
        worker = f"{os.getpid()} {'draft' if is_draft else 'target'}"
        self._claims = MemoryClaims(memory_claims.path_for(vllm_config.instance_id), worker)
        self._planned_bytes = 0  # of the layers that were let in

    def claim_layer(self, layer_bytes: int) -> None:
        """Claim what one more layer takes, before anything of it is loaded.

        All MoE layers are taken to be alike, so that the target's first one already stands for all of this worker's.

        Raises:
            HostMemoryError: with the other ranks' claims it is more than was free.
        """
        model = self._vllm_config.model_config
        layers = 1
        if not self._planned_bytes and not self._is_draft:
            layers = moe_layers(model, self._vllm_config.parallel_config)
        need = self._planned_bytes + layer_bytes * layers
        self._claims.claim(need, self._free_memory, f"the backing store of {model.model}")
        self._planned_bytes += layer_bytes

    def _free_memory(self) -> HostMemory:
        """As it is before the first backing store is made, or as the user says."""
        if self._settings.host_memory is None:
            return HostMemory.read()
        return HostMemory(parse_bytes(self._settings.host_memory), "host_memory in the wisp configuration")
