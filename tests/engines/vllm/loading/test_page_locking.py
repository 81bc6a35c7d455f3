"""A layer's store is page-locked while the layer is loaded, and what that meets is told when it is finished."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from wisp.engines.vllm.kernels.base import TRITON_KIND
from wisp.engines.vllm.layer_checks import check_store
from wisp.engines.vllm.loading.memory_loading import MemoryLoading
from wisp.engines.vllm.loading.page_locking import PageLocking
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import HostMemoryError

SETTINGS = WispSettings(expert_slots=2)


@pytest.fixture
def runtime(monkeypatch):
    """A CUDA runtime that locks once it `may`, and refuses with `failure`."""
    runtime = SimpleNamespace(may=threading.Event(), failure=0)
    runtime.cudaHostRegister = lambda *_: runtime.may.wait(30) and runtime.failure
    runtime.cudaHostUnregister = lambda *_: None
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    yield runtime
    runtime.may.set()


@pytest.fixture
def layer():
    """As far as `MemoryLoading` looks while its experts are to be loaded."""
    layer = nn.Module()
    layer.local_num_experts, layer.layer_name = 4, "model.layers.0.mlp.experts"
    layer.moe_config = SimpleNamespace(device="cuda")
    for name, shape in (("w13_weight", (4, 8, 16)), ("w2_weight", (4, 16, 4))):
        layer.register_parameter(name, nn.Parameter(torch.empty(shape), requires_grad=False))
    return layer


@pytest.fixture
def store(runtime, layer):
    """Which is being locked."""
    page_locking = PageLocking()
    first, second = (MemoryLoading(layer, SETTINGS, TRITON_KIND, page_locking, is_plain=True) for _ in range(2))
    for loading in (second, first, second):
        loading.weight_comes()
    return second.store


def test_a_layer_is_filled_before_its_store_is_locked(runtime, layer, store):
    for number, parameter in enumerate(layer.parameters()):
        parameter.data.fill_(number + 1)
    assert not runtime.may.is_set()
    runtime.may.set()
    check_store(layer, store, SETTINGS)
    assert store.page_locked
    assert (store.tensors["w13_weight"] == 1).all()
    assert (store.tensors["w2_weight"] == 2).all()


def test_a_refusal_is_told_when_the_layer_is_finished(runtime, layer, store):
    runtime.failure = 2
    runtime.may.set()
    with pytest.raises(HostMemoryError, match="could not be page-locked"):
        check_store(layer, store, SETTINGS)


def test_a_store_is_locked_once_another_is_filled_and_else_when_it_is_finished(runtime, layer):
    runtime.may.set()
    page_locking, asked = PageLocking(), []
    runtime.cudaHostRegister = lambda *_: asked.append(threading.current_thread().name) or 0
    loadings = [MemoryLoading(layer, SETTINGS, TRITON_KIND, page_locking, is_plain=True) for _ in range(3)]
    for loading in loadings[:2]:
        for _ in range(3):
            loading.weight_comes()
    assert loadings[0].store.page_locked
    assert [name.rsplit("_")[0] for name in asked] == ["wisp-page-lock"], "the others may still be written"
    assert all(loading.store.page_locked for loading in loadings)
    assert asked[1:] == ["MainThread"] * 2
