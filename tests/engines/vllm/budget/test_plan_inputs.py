"""What is wrong with the inputs of a plan is told in vLLM's front end, before a model is loaded."""

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from wisp.allocator import STATED, read_model_shape
from wisp.allocator.calibration_files import path_for
from wisp.allocator.machine import cpu_name
from wisp.engines.vllm.budget.config import go_by_budget
from wisp.engines.vllm.budget.plan_inputs import PlanInputs
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import WispError
from wisp.recording import Recording
from wisp.trace import RoutingTrace

pytestmark = pytest.mark.engine
MODEL = Path(__file__).parents[4] / "demo" / "model"


class Given:
    """What the user gave to vLLM beside."""

    gpu_memory_utilization, kv_cache_memory_bytes, num_gpu_blocks_override = 0.9, None, None


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)


def config(**scheduler):
    return SimpleNamespace(
        model_config=SimpleNamespace(model=str(MODEL), max_model_len=512),
        scheduler_config=SimpleNamespace(**{"max_num_seqs": 4, "max_num_batched_tokens": 4096, **scheduler}),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1, data_parallel_size=1, enable_expert_parallel=False),
        cache_config=SimpleNamespace(kv_cache_memory_bytes=None),
        speculative_config=None,
    )


def test_what_fits_is_let_through():
    served = config()
    settings = WispSettings(gpu_memory="64MiB", conversations=4)
    go_by_budget(Given(), served, settings)
    assert served.cache_config.kv_cache_memory_bytes == 64 << 20
    inputs = PlanInputs.read(served, settings)
    assert (inputs.rates, inputs.doubts, inputs.recording) == (STATED, [], None)


@pytest.mark.parametrize(
    ("scheduler", "settings", "told"),
    [
        ({}, {"conversations": 3}, "--conversations is 3 but 4 run at once"),
        ({"max_num_seqs": 2000}, {}, "--max-num-seqs is 2000; wisp plan reckons with 1024 at most"),
        ({"max_num_seqs": 2000}, {"expert_slots": 8}, "--max-num-seqs is 2000"),
    ],
)
def test_a_workload_that_cannot_be_planned_for_is_refused(scheduler, settings, told):
    with pytest.raises(WispError, match=told):
        go_by_budget(Given(), config(**scheduler), WispSettings(gpu_memory="64MiB", **settings))


def test_a_trace_of_another_model_is_refused(tmp_path):
    path = tmp_path / "trace.npz"
    Recording(RoutingTrace.from_steps(8, [[(0, 1)] * 3] * 2)).save(path)
    with pytest.raises(WispError, match="2 layers of 8 experts but the model has 6 of 32; record a trace of this"):
        go_by_budget(Given(), config(), WispSettings(gpu_memory="64MiB", trace=str(path)))


def test_a_damaged_calibration_that_is_kept_of_this_machine_and_model_is_refused():
    kept = path_for(cpu_name(), str(read_model_shape(MODEL)))
    kept.parent.mkdir(parents=True)
    kept.write_text("{")
    with pytest.raises(WispError, match=r"cannot be read .* calibrate anew"):
        go_by_budget(Given(), config(), WispSettings(gpu_memory="64MiB"))
