"""vLLM's layer of routed experts, with some of them in slots and all of them in host memory.

The life of a layer: `__init__` creates its tensors in host memory, vLLM loads the checkpoint into them,
`_finish` has vLLM give them the layout of its kernel and takes them into a backing store, `page` puts slots in their
place once all layers of the model are there, and from then on the engine's kernel is fed by a pager. How experts get
into memory, or stay in the checkpoint's files, is told in `loading/memory_loading.py` and `loading/file_loading.py`.
"""

import functools
import types
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from vllm.config import get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from wisp.engines.vllm import failure, workers
from wisp.engines.vllm.checks import check_engine
from wisp.engines.vllm.formats import format_of
from wisp.engines.vllm.kernels.base import KINDS
from wisp.engines.vllm.loading.background_loading import CopyInBackground
from wisp.engines.vllm.loading.expert_tensors import ExpertTensors, expert_parameters
from wisp.engines.vllm.loading.file_loading import FileLoading
from wisp.engines.vllm.loading.memory_loading import MemoryLoading
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import UnsupportedError
from wisp.pager.device import DevicePager
from wisp.pager.pager import ExpertPager
from wisp.pager.store import ExpertStore

_NO_RELOADING = "weights cannot be reloaded into a paged engine yet; start a new one instead"


class PagedRoutedExperts(RoutedExperts):  # type: ignore[misc]  # vLLM is not typed
    """`RoutedExperts` whose weights are slots. Without a `wisp` configuration it is `RoutedExperts` itself."""

    @failure.handed_over()
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        vllm_config = get_current_vllm_config()
        settings = WispSettings.of(vllm_config)
        if settings is None:
            object.__setattr__(self, "__class__", RoutedExperts)
            RoutedExperts.__init__(self, *args, **kwargs)
            return
        check_engine(vllm_config, settings)
        # Whatever the quantisation method creates under this context never touches the device as a whole.
        with torch.device("cpu"):
            super().__init__(*args, **kwargs)
        self._worker = workers.for_new_layer(vllm_config, settings, self.local_num_experts)
        self._settings = self._worker.settings
        self._check_method(self._settings)
        self._check_room()
        self._loading: FileLoading | MemoryLoading | None = self._begin_loading()
        in_files = settings.backing_store == "checkpoint"
        self._copying = nullcontext() if in_files else CopyInBackground(self._worker.loading.host_copies)
        self._store: ExpertStore | None = None
        self._place = self._worker.add_layer()
        self._is_finished = False
        self._finish_after_loading()

    @property
    def store(self) -> ExpertStore:
        """All of the layer's experts, in host memory or in files; there once the weights are loaded."""
        assert self._store is not None, "weights are loaded before anything is computed"
        return self._store

    @property
    def expert_tensors(self) -> ExpertTensors:
        """Where the engine finds the experts; there once the weights are loaded."""
        return self._tensors

    @property
    def pager(self) -> ExpertPager:
        """The layer's pager where the host decides; there once the weights are loaded."""
        return self._worker.pagers[self._place]

    @property
    def in_graph_pager(self) -> DevicePager | None:
        """The layer's pager where the device decides."""
        paging = self._worker.in_graph
        return None if paging is None else paging.pagers[self._place]

    @property
    def expert_slots(self) -> int:
        """How many of its experts can be resident."""
        return self._worker.slots

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterable[str]:
        """As in vLLM, until the experts are in their store.

        Raises:
            UnsupportedError: they are, and what the layer has in place of its parameters are slots.
        """
        if self._is_finished:
            raise UnsupportedError(_NO_RELOADING)
        names: Iterable[str] = super().load_weights(weights)
        return names

    @functools.wraps(RoutedExperts.weight_loader)  # vLLM looks at its parameters
    def weight_loader(self, *args: Any, **kwargs: Any) -> Any:
        """As in vLLM, but what it copies in host memory is copied in the background, and there once all is loaded."""
        if isinstance(self._loading, MemoryLoading):
            self._loading.weight_comes()
        with self._copying:
            return super().weight_loader(*args, **kwargs)

    def forward_modular(
        self,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any = None,
        shared_experts_input: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As in vLLM. On a CPU, where vLLM traces this code for `torch.compile`, paging hides in an op."""
        if x.device.type == "cpu":
            hidden: torch.Tensor = torch.ops.wisp.paged_experts(x, topk_weights, topk_ids, self.layer_name)
            return hidden
        return self.forward_paged(x, topk_weights, topk_ids, shared_experts, shared_experts_input)

    def forward_paged(
        self, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, *shared: Any
    ) -> torch.Tensor:
        """Run the engine's own path, whose kernel's `apply` is ours; `shared` is what vLLM says of shared experts."""
        output: torch.Tensor = super().forward_modular(x, topk_weights, topk_ids, *shared)
        return output

    def _check_method(self, settings: WispSettings) -> None:
        """Refuse a method or kernel that cannot be paged, before anything is loaded."""
        method = self.quant_method
        known = format_of(method, unshown=settings.unshown_formats)
        self._kind = KINDS[method.experts_cls.__name__]
        self._is_plain = type(method) is UnquantizedFusedMoEMethod
        if settings.backing_store == "checkpoint" and not self._is_plain:
            raise UnsupportedError(
                f"{known.words} experts are laid out anew for their kernel, so that the checkpoint's files cannot be "
                f"the backing store; set backing_store to memory"
            )
        ranks = self.moe_config.moe_parallel_config.ep_size
        if ranks > 1 and not self._is_plain:
            raise UnsupportedError(
                f"{known.words} experts were not tried with expert parallelism; leave --enable-expert-parallel out"
            )
        below_top_k = self._kind.below_top_k
        settings.check_model(self.local_num_experts, self.top_k, waves_by_expert=below_top_k, ranks=ranks)

    def _check_room(self) -> None:
        """Check what the experts, and the slots that are on the host too, take of its memory."""
        parameters = expert_parameters(self, self.local_num_experts).values()
        if any(parameter.device.type != "cpu" for parameter in parameters):
            raise UnsupportedError(
                f"{self.layer_name} is quantised while it is loaded, which bypasses host memory; serve a checkpoint "
                f"that is quantised already"
            )
        on_host = torch.device(self.moe_config.device).type == "cpu"
        # the page cache gives way where it is not page-locked
        held = self.local_num_experts if self._settings.backing_store == "memory" or not on_host else 0
        copies = held + on_host * self._worker.slots
        self._worker.loading.host_room.claim_layer(sum(parameter[0].nbytes for parameter in parameters) * copies)

    def _begin_loading(self) -> FileLoading | MemoryLoading:
        """Take the still empty parameters to where the checkpoint is to be loaded."""
        loading = self._worker.loading
        if self._settings.backing_store == "checkpoint":
            return FileLoading(self, self._settings, loading.file_finder)
        return MemoryLoading(self, self._settings, self._kind, loading.page_locking, is_plain=self._is_plain)

    def _finish_after_loading(self) -> None:
        """Have vLLM finish the loaded weights, and take them over then."""
        method = self.quant_method
        finish_loading = method.process_weights_after_loading

        def process_weights_after_loading(_method: Any, layer: Any) -> None:
            if self._is_finished:
                raise UnsupportedError(_NO_RELOADING)
            layer._finish(finish_loading)

        method.process_weights_after_loading = types.MethodType(process_weights_after_loading, method)
        method.requires_device_loading = False

    @failure.handed_over()
    def _finish(self, finish_loading: Callable[[nn.Module], None]) -> None:
        """Let the method lay out the experts for its kernel, bring them into the backing store, and have them paged."""
        self._worker.loading.host_copies.wait()
        assert self._loading is not None, "a layer is loaded once"
        self._store, self._tensors = self._loading.finish(finish_loading)
        self._loading = None
        self._is_finished = True
        self._worker.finish(self)

    def take_slots(self) -> None:
        """Compute from the worker's slots from now on."""
        experts = self.quant_method.moe_kernel.fused_experts
        paged = self._worker.page(self._place, self._kind, experts, self)
        self._tensors.bind(paged.slots)
        experts.apply = paged.kernel.run  # shadows the method on this instance

    def leave_slots(self) -> None:
        """Hold on to no slot, so that they can be made anew; `take_slots` has to follow."""
        del self.quant_method.moe_kernel.fused_experts.apply
        self._tensors.release()


@torch.library.custom_op("wisp::paged_experts", mutates_args=())
def paged_experts(x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, layer_name: str) -> torch.Tensor:
    """Opaque to `torch.compile`: [tokens, hidden] in, the same out."""
    layer: PagedRoutedExperts = get_forward_context().no_compile_layers[layer_name].routed_experts
    return layer.forward_paged(x, topk_weights, topk_ids)


@paged_experts.register_fake
def _(x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, layer_name: str) -> torch.Tensor:
    return torch.empty_like(x)
