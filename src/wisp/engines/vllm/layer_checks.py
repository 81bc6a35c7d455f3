"""What cannot be paged although the engine could be: refused once a layer's kernel and backing store are known."""

from collections.abc import Sequence
from typing import Any

import torch

from wisp.engines.vllm.kernels.base import MARLIN_KIND, KernelKind, needs_planar_arena, scales_steps
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import HostMemoryError, UnsupportedError
from wisp.pager.arena import WORD_BYTES
from wisp.pager.store import ExpertStore


def check_store(layer: Any, store: ExpertStore, settings: WispSettings) -> None:
    """Raise `HostMemoryError` for a layer's store that a graph has to read and cannot."""
    on_device = settings.decides_on_device(torch.device(layer.moe_config.device).type)
    if on_device and not store.page_locked:
        raise HostMemoryError(
            f"the experts of {layer.layer_name} could not be page-locked, and a CUDA graph can read only page-locked "
            f"memory of the host; raise the limit on locked memory (ulimit -l unlimited), or set decide to host and "
            f"add --enforce-eager, unless the experts are computed by Marlin or by scales of a whole step, which need "
            f"the device"
        )


def check_on_host(kind: KernelKind, experts: Any) -> None:
    """Raise `UnsupportedError` for a kernel that cannot be fed where the host decides."""
    name = type(experts).__name__
    if kind is MARLIN_KIND:
        raise UnsupportedError(
            f"the MoE kernel {name} is fed where the device decides only; set decide to auto and policy to lru"
        )
    if scales_steps(experts):
        raise UnsupportedError(
            f"{name} scales the activations of a step together, so that a step wider than the slots cannot be "
            f"computed in waves; set decide to auto and policy to lru"
        )


def check_in_graph(stores: Sequence[ExpertStore], kind: KernelKind, experts: Any, *, is_draft: bool) -> None:
    """Raise `UnsupportedError` for layers that the device cannot page together."""
    on_host = "set decide to host and add --enforce-eager"
    if kind is MARLIN_KIND or scales_steps(experts):
        on_host = ""
    if is_draft and len(stores) > 1:
        raise UnsupportedError(
            f"the draft model has {len(stores)} layers with experts, which run one at a time and not in a round; on "
            f"the device one is paged so far: leave --speculative-config out{on_host and f', or {on_host}'}"
        )
    if len({(store.layout.signature, store.num_experts) for store in stores}) > 1:
        raise UnsupportedError(
            f"the layers of this model have experts of different shapes, which cannot be decided on the device yet; "
            f"{on_host or 'serve a checkpoint whose layers are quantised alike'}"
        )
    for part in stores[0].layout.parts if needs_planar_arena(kind, experts, stores[0]) else ():
        if part.nbytes % WORD_BYTES:
            raise UnsupportedError(
                f"{part.name} takes {part.nbytes} bytes of an expert, and the device copies contiguous tensors in "
                f"words of {WORD_BYTES}; {on_host or 'serve a checkpoint that is quantised in another way'}"
            )
