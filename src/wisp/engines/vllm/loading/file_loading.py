"""Loading a layer whose experts stay in the files of the checkpoint: `backing_store` set to checkpoint."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from wisp.engines.vllm.formats import CPU
from wisp.engines.vllm.layer_checks import check_store
from wisp.engines.vllm.loading.cpu_packing import packing_of
from wisp.engines.vllm.loading.expert_tensors import WEIGHTS, ExpertTensors, expert_parameters
from wisp.engines.vllm.loading.loaded_experts import LoadedExperts
from wisp.engines.vllm.loading.unloaded import places_of, unload
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import UnsupportedError
from wisp.pager.checkpoint_store import CheckpointStore
from wisp.pager.file_places import FileFinder
from wisp.pager.store import RowLayout


class FileLoading:
    """One layer on its way: its parameters have no memory, and what the loader copies into them is noted."""

    def __init__(self, layer: Any, settings: WispSettings, finder: FileFinder) -> None:
        """Take over the layer's still empty parameters.

        Raises:
            UnsupportedError: there are more than its weights.
        """
        parameters = expert_parameters(layer, layer.local_num_experts)
        for name in sorted(set(parameters) - set(WEIGHTS)):
            raise UnsupportedError(
                f"the experts of {layer.layer_name} have {name} beside their weights, which are not read from the "
                f"checkpoint's files yet; set backing_store to memory"
            )
        self._layer, self._settings = layer, settings
        self._layout = RowLayout({name: (tuple(each.shape[1:]), each.dtype) for name, each in parameters.items()})
        self._notes = unload(layer, list(parameters), finder)

    def finish(self, finish_loading: Callable[[nn.Module], None]) -> LoadedExperts:
        """Have vLLM set up its kernel, on weights of one expert, and make a store of the files.

        Raises:
            UnsupportedError: the files do not hold what the kernel takes.
            HostMemoryError: a CUDA graph has to read them and they are not page-locked.
        """
        layer, layout = self._layer, self._layout
        segments, places = places_of(layer.layer_name, layout, self._notes)
        for part in layout.parts:
            _put(layer, part.name, torch.zeros((1, *part.shape), dtype=part.dtype, device="cpu"))
        finish_loading(layer)
        for part in layout.parts:
            if tuple(getattr(layer, part.name).shape[1:]) != part.shape:
                raise UnsupportedError(
                    f"backing_store is set to checkpoint, but the kernel pads {part.name} of {layer.layer_name} from "
                    f"{part.shape} to {tuple(getattr(layer, part.name).shape[1:])}; set backing_store to memory"
                )
            # shapes are looked at, and nothing is read
            nothing = torch.empty(part.shape, dtype=part.dtype, device="cpu")
            _put(layer, part.name, nothing.expand(len(places), *part.shape))
        experts = layer.quant_method.moe_kernel.fused_experts
        arrange = packing_of(experts) if type(experts).__name__ in CPU else None
        device, page_lock = layer.moe_config.device, self._settings.page_lock
        store = CheckpointStore(layout, segments, places, page_lock=page_lock, device=device, arrange=arrange)
        check_store(layer, store, self._settings)
        tensors = ExpertTensors(layer, layer.quant_method, layer.local_num_experts)
        tensors.release()
        return LoadedExperts(store, tensors)


def _put(layer: nn.Module, name: str, tensor: torch.Tensor) -> None:
    layer.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
