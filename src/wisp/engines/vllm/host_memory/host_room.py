"""Whether a worker's backing stores fit into host memory, asked before each layer is made.

Beside them vLLM may be told to keep KV there (`--kv-offloading-size`), which it page-locks once all is loaded.
"""

import os
from typing import TYPE_CHECKING

from wisp.engines.vllm.host_memory import memory_claims
from wisp.engines.vllm.host_memory.memory_claims import MemoryClaims
from wisp.engines.vllm.host_memory.moe_layers import moe_layers
from wisp.engines.vllm.settings import WispSettings
from wisp.pager.host_memory import HostMemory
from wisp.units import format_bytes, parse_bytes

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
        need, what = self._planned_bytes + layer_bytes * layers, f"the backing store of {model.model}"
        if kv_bytes := 0 if self._is_draft else self._offloaded_kv_bytes():
            need, what = need + kv_bytes, f"{what}, beside {format_bytes(kv_bytes)} of KV that is kept there,"
        self._claims.claim(need, self._free_memory, what)
        self._planned_bytes += layer_bytes

    def _offloaded_kv_bytes(self) -> int:
        """This rank's share of the KV that vLLM is to keep in host memory; it knows its connectors' by this key."""
        transfer = self._vllm_config.kv_transfer_config
        whole = transfer.kv_connector_extra_config.get("cpu_bytes_to_use", 0) if transfer is not None else 0
        return int(whole) // int(self._vllm_config.parallel_config.world_size)

    def _free_memory(self) -> HostMemory:
        """As it is before the first backing store is made, or as the user says."""
        if self._settings.host_memory is None:
            return HostMemory.read()
        return HostMemory(parse_bytes(self._settings.host_memory), "host_memory in the wisp configuration")
