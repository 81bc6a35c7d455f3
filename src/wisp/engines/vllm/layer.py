"""vLLM's layer of routed experts, with some of them in slots and all of them in host memory.

The life of a layer: `__init__` creates its tensors in a backing store, vLLM loads the checkpoint into them,
`_page` swaps them for slots, and from then on the engine's kernel is fed by a pager.
"""

import types
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from vllm.config import get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from wisp.engines.vllm import failure
from wisp.engines.vllm.checks import check_engine
from wisp.engines.vllm.kernels import kernel_kind
from wisp.engines.vllm.paging import WorkerPaging
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import UnsupportedError
from wisp.pager.device import DevicePager
from wisp.pager.pager import ExpertPager
from wisp.pager.store import HostStore

NOT_PAGED = ("e_score_correction_bias", "w13_input_scale", "w2_input_scale", "hash_indices_table")
"""Parameters that vLLM keeps on this layer and that do not belong to one expert."""


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
        self._worker = WorkerPaging.for_new_layer(vllm_config, settings, self.local_num_experts)
        self._settings = self._worker.settings
        self._check_method(self._settings)
        self._store = self._make_store()
        self._place = self._worker.add_layer(self.layer_name, self._store, torch.device(self.moe_config.device))
        self._is_paged = False
        self._page_after_loading()

    @property
    def store(self) -> HostStore:
        """All of the layer's experts, in host memory."""
        return self._store

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
        if type(method) is not UnquantizedFusedMoEMethod:
            raise UnsupportedError(
                f"{self.layer_name} uses {type(method).__name__}, whose experts cannot be paged yet; "
                f"serve a bf16 or fp16 checkpoint"
            )
        self._kind = kernel_kind(method.experts_cls)
        ranks = self.moe_config.moe_parallel_config.ep_size
        waves_by_expert = self._kind.waves_by_expert
        settings.check_model(self.local_num_experts, self.top_k, waves_by_expert=waves_by_expert, ranks=ranks)

    def _expert_parameters(self) -> dict[str, nn.Parameter]:
        """The tensors that make up the experts: [experts, ...] each."""
        return {
            name: parameter
            for name, parameter in self.named_parameters(recurse=False)
            if name not in NOT_PAGED and parameter.ndim > 0 and parameter.shape[0] == self.local_num_experts
        }

    def _make_store(self) -> HostStore:
        """Move the still empty parameters into a backing store, so that loading writes there."""
        parameters = self._expert_parameters()
        expert_bytes = sum(parameter[0].nbytes for parameter in parameters.values())
        on_host = torch.device(self.moe_config.device).type == "cpu"  # the slots too
        self._worker.check_room(expert_bytes * (self.local_num_experts + on_host * self._worker.slots))
        store = HostStore(
            {name: parameter.data for name, parameter in parameters.items()},
            page_lock=self._settings.page_lock,
            device=self.moe_config.device,
        )
        for name, parameter in parameters.items():
            # biases start at zero and stay so where the checkpoint has none
            if parameter.ndim == 2:
                store.tensors[name].copy_(parameter.data)
            parameter.data = store.tensors[name]
        return store

    def _page_after_loading(self) -> None:
        """Have vLLM finish the loaded weights where they are, in host memory, and page the layer then."""
        method = self.quant_method
        finish_loading = method.process_weights_after_loading

        def process_weights_after_loading(_method: Any, layer: Any) -> None:
            if self._is_paged:
                raise UnsupportedError("weights cannot be reloaded into a paged engine yet; start a new one instead")
            with layer._stand_ins() if self._kind.takes_checkpoint_layout else nullcontext():
                finish_loading(layer)
            layer._page()

        method.process_weights_after_loading = types.MethodType(process_weights_after_loading, method)
        method.requires_device_loading = False

    @contextmanager
    def _stand_ins(self) -> Iterator[None]:
        """Within, the parameters are of one expert: vLLM sets up its kernel without copying what it need not."""
        for parameter in self._expert_parameters().values():
            parameter.data = torch.empty_like(parameter.data[:1])
        yield
        for name, tensor in self._store.tensors.items():
            getattr(self, name).data = tensor

    def _take_repacked(self) -> None:
        """Bring into the store what the engine has repacked; in a new one, where it has padded the experts."""
        parameters = {name: parameter.data for name, parameter in self._expert_parameters().items()}
        if any(tensor.shape != self._store.tensors[name].shape for name, tensor in parameters.items()):
            self._store = HostStore(parameters, page_lock=self._settings.page_lock, device=self.moe_config.device)
            self._worker.stores[self._place] = self._store
        for name, tensor in parameters.items():
            if tensor.data_ptr() != self._store.tensors[name].data_ptr():
                self._store.tensors[name].copy_(tensor)

    @failure.handed_over()
    def _page(self) -> None:
        """Replace the parameters by slots and the kernel's `apply` by ours."""
        self._take_repacked()
        for name in self._store.tensors:
            delattr(self, name)
        self.take_slots()
        self._is_paged = True

    def take_slots(self) -> None:
        """Compute from the worker's slots from now on."""
        experts = self.quant_method.moe_kernel.fused_experts
        paged = self._worker.page(self._place, self._kind, experts, self)
        for name, slots in paged.slots.items():
            self.register_buffer(name, slots, persistent=False)
        config = self.quant_method.moe_quant_config
        for captured, name in ((config._w1, "w13_bias"), (config._w2, "w2_bias")):
            if captured.bias is not None:  # taken from the layer before the slots were there
                captured.bias = paged.slots[name]
        experts.apply = paged.kernel.run  # shadows the method on this instance

    def leave_slots(self) -> None:
        """Hold on to no slot, so that they can be made anew; `take_slots` has to follow."""
        del self.quant_method.moe_kernel.fused_experts.apply
        config = self.quant_method.moe_quant_config
        for captured in (config._w1, config._w2):
            if captured.bias is not None:
                captured.bias = captured.bias.new_empty(0)  # not None: that there is one is known by it
        for name in self._store.tensors:
            delattr(self, name)


@torch.library.custom_op("wisp::paged_experts", mutates_args=())
def paged_experts(x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, layer_name: str) -> torch.Tensor:
    """Opaque to `torch.compile`: [tokens, hidden] in, the same out."""
    layer: PagedRoutedExperts = get_forward_context().no_compile_layers[layer_name].routed_experts
    return layer.forward_paged(x, topk_weights, topk_ids)


@paged_experts.register_fake
def _(x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, layer_name: str) -> torch.Tensor:
    return torch.empty_like(x)
