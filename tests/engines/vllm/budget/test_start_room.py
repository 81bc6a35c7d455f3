"""A device that has less free than `gpu_memory` is told of in our own words, before vLLM loads anything."""

import re
from inspect import unwrap
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from wisp.byte_text import format_bytes
from wisp.engines.vllm.budget.start_room import CUDA_CONTEXT_BYTES, requested_bytes
from wisp.engines.vllm.patches import requested_memory
from wisp.errors import DeviceMemoryError

pytestmark = pytest.mark.engine
GIB = 1 << 30


def config(**settings):
    return SimpleNamespace(additional_config={"wisp": settings})


def first_look(free_bytes):
    return SimpleNamespace(free_memory=free_bytes, total_memory=80 * GIB, device_="cuda:3")


def test_the_engine_may_take_the_budget_less_cuda_s_context_which_is_there_already():
    need = 24 * GIB - CUDA_CONTEXT_BYTES
    assert requested_bytes(config(gpu_memory="24GiB"), first_look(need)) == need
    assert requested_bytes(config(gpu_memory="24GiB", expert_slots=4), first_look(79 * GIB)) == need


def test_without_a_budget_vllm_goes_by_its_own_flags():
    assert requested_bytes(config(expert_slots=4), first_look(0)) is None
    assert requested_bytes(SimpleNamespace(additional_config={}), first_look(0)) is None


@pytest.mark.parametrize("free_bytes", [0, 12 * GIB + 12345, 24 * GIB - CUDA_CONTEXT_BYTES - 1])
def test_what_is_free_wanted_and_to_be_done_is_said_and_what_is_advised_fits(free_bytes):
    with pytest.raises(DeviceMemoryError) as refusal:
        requested_bytes(config(gpu_memory="24GiB"), first_look(free_bytes))
    error, text = refusal.value, str(refusal.value)
    assert (error.need_bytes, error.free_bytes) == (24 * GIB - CUDA_CONTEXT_BYTES, free_bytes)
    assert "gpu_memory 24GiB, less 512MiB for CUDA's context, takes 23.5GiB" in text
    assert f"but {format_bytes(free_bytes)} are free; end what else is on cuda:3, or lower gpu_memory to " in text
    (advised,) = re.findall(r"lower gpu_memory to (\S+)$", text)
    requested_bytes(config(gpu_memory=advised), first_look(free_bytes))


def test_vllm_s_worker_asks_before_its_own_check(monkeypatch):
    from vllm.v1.worker import gpu_worker

    current = {}
    monkeypatch.setattr(gpu_worker, "request_memory", gpu_worker.request_memory)
    monkeypatch.setattr("vllm.config.get_current_vllm_config", lambda: current["config"])
    unwrap(requested_memory.install)(requested_bytes)  # whether or not an earlier test has installed it
    share = SimpleNamespace(gpu_memory_utilization=0.3)

    def ask(free_bytes, **settings):
        current["config"] = config(**settings)
        return gpu_worker.request_memory(first_look(free_bytes), share, 0)

    with pytest.raises(DeviceMemoryError, match="gpu_memory 24GiB"):
        ask(20 * GIB, gpu_memory="24GiB")
    assert ask(24 * GIB, gpu_memory="24GiB") == 24 * GIB - CUDA_CONTEXT_BYTES
    with pytest.raises(ValueError, match="less than desired GPU memory utilization"):
        ask(20 * GIB, expert_slots=4)
    assert ask(24 * GIB, expert_slots=4) == 24 * GIB
