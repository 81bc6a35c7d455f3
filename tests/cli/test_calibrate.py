"""`wisp calibrate`: measured on a real engine, kept where plans find it; bad input is one paragraph."""

import json
import subprocess
import sys

import pytest

from wisp.allocator import STATED, Calibration, read_model_shape
from wisp.allocator.calibration_files import path_for
from wisp.allocator.machine import cpu_name, gpu_name


@pytest.fixture
def refused(wisp):
    def run(*words):
        ended = wisp("calibrate", *words)
        assert ended.code == 2
        assert ended.err.startswith("wisp: ")
        assert ended.err.count("\n") == 1, "one paragraph"
        return ended.err

    return run


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("-o", "/no/such/folder/c.json"), "cannot be written"),
        (("--expert-slots", "2"), "a token needs 8 experts"),
        (("--expert-slots", "200"), "has 128 experts"),
        (("--cpu-offload-gb", "4"), "use one of the two, not both"),
    ],
)
def test_what_makes_no_sense_is_refused_before_an_engine_starts(refused, model, qwen_config, words, told):
    (model / "config.json").write_text(qwen_config)
    assert told in refused(model, *words)


def test_a_model_that_is_not_here_is_refused(refused):
    assert "`hf download Owner/Some-MoE config.json`" in refused("Owner/Some-MoE")


@pytest.mark.parametrize("cache", ["/dev/null", "/proc/self"])
def test_a_cache_that_cannot_be_written_is_told_before_anything_is_measured(
    refused, model, qwen_config, cache, monkeypatch
):
    (model / "config.json").write_text(qwen_config)
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    assert "cannot be made" in (told := refused(model))
    assert "with -o" in told


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_what_is_measured_is_kept_as_of_this_kind_of_device(checkpoint, tmp_path, monkeypatch):
    envs = pytest.importorskip("vllm.envs")
    monkeypatch.setenv("VLLM_CACHE_ROOT", envs.VLLM_CACHE_ROOT)  # without it vLLM looks at the model anew, for 10 s
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    model = checkpoint("qwen3_moe")

    def wisp(*words):
        command = [sys.executable, "-m", "wisp.cli.main", *map(str, words)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr + ended.stdout
        return ended

    told = wisp("calibrate", model, "--enforce-eager").stdout
    shape = read_model_shape(model)
    path = path_for(cpu_name(), str(shape))
    assert str(path) in told.replace("\n", "")
    found = Calibration.load(path)
    assert (found.machine, found.model) == (cpu_name(), str(shape))
    assert {"wisp", "torch"} <= set(found.versions)
    assert "cudagraph_mode eager" in found.engine
    pinned = [point for point in found.measured["decode"] if point["is_pinned"]]
    faulting = [point for point in found.measured["decode"] if not point["is_pinned"]]
    assert {(point["streams"], point["context"] > 200) for point in pinned} >= {(1, False), (8, False), (1, True)}
    assert [point["faults"] for point in pinned] == [0] * len(pinned)
    assert {point["faults"] for point in faulting} >= {3 * 2, 3 * 4}, "three layers, half of top-4 and all of it"
    assert min(point["nbytes"] for point in found.measured["copies"]) <= shape.expert_bytes
    assert len(found.prefill) >= 3
    assert found.device == "cpu"
    ended = wisp("plan", model, "--gpu-memory", "2GiB", "--max-model-len", "512", "--json")
    assert json.loads(ended.stdout)["costs"]["fault_bytes_per_second"] == STATED.fault_bytes_per_second
    if gpu_name() is None:
        assert f"the calibration of {cpu_name()} is left aside" in ended.stderr
