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
    store = MemoryLoading(layer, SETTINGS, TRITON_KIND, page_locking, is_plain=True).store
    page_locking.begin()
    return store


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


def test_nothing_is_locked_while_layers_are_made_and_nothing_twice(runtime, layer):
    runtime.may.set()
    page_locking, asked = PageLocking(), []
    runtime.cudaHostRegister = lambda *_: asked.append(threading.current_thread().name) or 0
    first, second = (MemoryLoading(layer, SETTINGS, TRITON_KIND, page_locking, is_plain=True).store for _ in range(2))
    assert not asked
    for _ in range(2):
        page_locking.begin()
    assert first.page_locked
    assert second.page_locked
    assert len(asked) == 2
    assert all(name.startswith("wisp-page-lock") for name in asked)
