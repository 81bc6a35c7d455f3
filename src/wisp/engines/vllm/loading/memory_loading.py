"""Loading a layer whose experts are kept in host memory: `backing_store` set to memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from wisp.engines.vllm.kernels.base import KernelKind
from wisp.engines.vllm.layer_checks import check_store
from wisp.engines.vllm.loading.expert_tensors import WEIGHTS, ExpertTensors, expert_parameters
from wisp.engines.vllm.loading.loaded_experts import LoadedExperts
from wisp.engines.vllm.loading.page_locking import PageLocking
from wisp.engines.vllm.settings import WispSettings
from wisp.pager.store import HostStore


class MemoryLoading:
    """One layer on its way: unquantised experts are loaded into their store, others into memory of the engine's own.

    Those visit the device, as in stock vLLM, one layer at a time, and come into a store of their kernel's layout.
    """

    def __init__(
        self, layer: Any, settings: WispSettings, kind: KernelKind, page_locking: PageLocking, *, is_plain: bool
    ) -> None:
        """Take over the layer's still empty parameters; `is_plain` says that they are not quantised."""
        self._layer, self._settings, self._kind, self._is_plain = layer, settings, kind, is_plain
        self._page_locking = page_locking
        self.store = self._make_store() if is_plain else None

    def weight_comes(self) -> None:
        """One of the layer's weights is loaded next."""
        if self.store is not None:
            self._page_locking.fills(self.store)

    def finish(self, finish_loading: Callable[[nn.Module], None]) -> LoadedExperts:
        """Let the method lay out the experts for its kernel, and bring them into the store.

        Raises:
            HostMemoryError: a CUDA graph has to read the store and it is not page-locked.
        """
        layer = self._layer
        if not self._is_plain:
            for parameter in layer.parameters(recurse=False):
                parameter.data = parameter.data.to(layer.moe_config.device)
        with self._stand_ins() if self._is_plain and self._kind.takes_strides else nullcontext():
            finish_loading(layer)
        tensors = ExpertTensors(layer, layer.quant_method, layer.local_num_experts)
        store = self.store = self._taken_over(tensors.tensors)
        tensors.release()
        return LoadedExperts(store, tensors)

    def _make_store(self) -> HostStore:
        """Move the still empty parameters into a backing store, so that loading writes there."""
        parameters = expert_parameters(self._layer, self._layer.local_num_experts)
        like = {name: parameter.data for name, parameter in parameters.items()}
        store = self._empty_store(like, lock_later=True)
        for name, parameter in parameters.items():
            # biases start at zero and stay so where the checkpoint has none
            if parameter.ndim == 2:
                store.tensors[name].copy_(parameter.data)
            parameter.data = store.tensors[name]
        return store

    def _empty_store(self, like: dict[str, torch.Tensor], *, lock_later: bool = False) -> HostStore:
        device, page_lock = self._layer.moe_config.device, self._settings.page_lock
        return HostStore(like, page_lock=page_lock, device=device, lock_later=lock_later)

    @contextmanager
    def _stand_ins(self) -> Iterator[None]:
        """Within, the weights are of one expert: vLLM sets up its kernel without copying what it need not.

        Biases stay, since the kernel takes them from the layer once and for all; that is how they are found later.
        """
        for name in WEIGHTS:
            parameter = getattr(self._layer, name)
            parameter.data = torch.empty_like(parameter.data[:1])
        yield
        assert self.store is not None
        for name, tensor in self.store.tensors.items():
            getattr(self._layer, name).data = tensor

    def _taken_over(self, tensors: dict[str, torch.Tensor]) -> HostStore:
        """The store, with what the method has laid out; a new one where it is not the one that was loaded."""
        store = self.store
        if store is None or {name: each.shape for name, each in tensors.items()} != {
            name: each.shape for name, each in store.tensors.items()
        }:
            store = self._empty_store(tensors)
        check_store(self._layer, store, self._settings)
        _fill(store, tensors)
        return store


def _fill(store: HostStore, tensors: dict[str, torch.Tensor]) -> None:
    """Copy the experts into the store; from a device in one piece, which is laid out there."""
    device = next(iter(tensors.values())).device
    rows = store.rows if device.type == "cpu" else torch.zeros_like(store.rows, device=device)
    for name, place in store.layout.views(rows).items():
        if place.data_ptr() != tensors[name].data_ptr():
            place.copy_(tensors[name])
    if rows is not store.rows:
        store.rows.copy_(rows)
