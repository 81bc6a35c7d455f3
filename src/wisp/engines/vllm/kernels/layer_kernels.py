"""Which kernel each paged layer of a worker computes with: by what the engine's own takes, and by who decides."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from wisp.engines.vllm.in_graph_paging import InGraphPaging
from wisp.engines.vllm.kernels import padding
from wisp.engines.vllm.kernels.all_resident import AllResidentKernel, resident_tensors
from wisp.engines.vllm.kernels.base import KernelKind, PagedKernel
from wisp.engines.vllm.kernels.choices import PartialOutputs
from wisp.engines.vllm.kernels.expert_map import ExpertMapKernel
from wisp.engines.vllm.kernels.in_graph import InGraphKernel
from wisp.engines.vllm.kernels.planar import PlanarKernel
from wisp.engines.vllm.kernels.slot_ids import SlotIdKernel
from wisp.pager.pager import ExpertPager
from wisp.pager.store import ExpertStore

if TYPE_CHECKING:
    from vllm.config import VllmConfig

EAGER_IN_PLACE_TOKENS = 64
"""Without CUDA graphs, wider steps than this are streamed."""


@dataclass(frozen=True)
class PagedLayer:
    """What a layer computes with from now on."""

    kernel: PagedKernel
    slots: dict[str, torch.Tensor]
    """By the names of the layer's parameters, which they replace."""


class LayerKernels:
    """Makes the kernels of one worker's layers.

    `experts` is vLLM's kernel of a layer, and `layer` vLLM's layer, with slots or still without.
    """

    def __init__(self, vllm_config: "VllmConfig") -> None:
        self._vllm_config = vllm_config
        self._partial_outputs: PartialOutputs | None = None

    def decided_on_host(self, kind: KernelKind, experts: Any, pager: ExpertPager, layer: Any) -> PagedLayer:
        """Fed from the slots of the layer's own pager."""
        if kind.takes_expert_map:
            return PagedLayer(ExpertMapKernel(experts, pager, self._partial_outputs_for(layer)), pager.pool.tensors)
        return PagedLayer(SlotIdKernel(experts, pager), pager.pool.tensors)

    def decided_on_device(self, experts: Any, paging: InGraphPaging, place: int, layer: Any) -> PagedLayer:
        """Fed from the arena, whose layer number `place` this is."""
        if paging.arena.planar:
            return PagedLayer(PlanarKernel(experts, paging, place, self._graph_tokens()), paging.arena.tensors)
        kernel = InGraphKernel(
            experts,
            paging,
            place,
            self._partial_outputs_for(layer),
            self._graph_tokens(),
            padding_is_routed=padding.is_routed(self._vllm_config, layer.layer_name),
        )
        return PagedLayer(kernel, paging.arena.tensors)

    def left_alone(self, experts: Any, store: ExpertStore, device: torch.device) -> PagedLayer:
        """The engine's own, with every expert on the device.

        Raises:
            ConfigError: the device has no room for them.
        """
        return PagedLayer(AllResidentKernel(experts), resident_tensors(store, device))

    def _graph_tokens(self) -> int:
        """The widest step that a CUDA graph may hold."""
        sizes = self._vllm_config.compilation_config.cudagraph_capture_sizes
        return max(EAGER_IN_PLACE_TOKENS, *map(int, sizes or (0,)))

    def _partial_outputs_for(self, layer: Any) -> PartialOutputs:
        """The worker's buffer for choice outputs, made at the first call."""
        if self._partial_outputs is None:
            tokens = self._vllm_config.scheduler_config.max_num_batched_tokens
            device = torch.device(layer.moe_config.device)
            self._partial_outputs = PartialOutputs(tokens, layer.top_k, layer.hidden_size, layer.params_dtype, device)
        return self._partial_outputs
