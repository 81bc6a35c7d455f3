"""Engines of several ranks give paged what they give unpaged, and each rank counts what it pages."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from workload import EAGER, assert_identical, make_request

from wisp.engines.vllm.verify import arm
from wisp.engines.vllm.verify.record import SCHEDULE_FILE_VARIABLE
from wisp.errors import VerifyError

pytestmark = pytest.mark.engine
MODEL = Path(__file__).parents[3] / "demo" / "model"


@pytest.fixture(scope="module")
def two_cores():
    """Environment in which each of two ranks has a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("two ranks need two cores")
    return {**EAGER, "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores[:2]))}


def test_pipeline_parallel(engines, checkpoint, two_cores):
    model = checkpoint("qwen3_moe", num_hidden_layers=4, decoder_sparse_step=2)
    args = {"pipeline_parallel_size": 2}
    replies = engines(
        {"stock": make_request(model, **args), "paged": make_request(model, {"expert_slots": 5}, **args)}, **two_cores
    )
    assert "error" not in replies["stock"], replies["stock"]
    assert_identical(replies["paged"], replies["stock"])
    first, second = replies["paged"]["counters"]
    assert list(first["layers"]) == ["model.layers.1.mlp.experts"]
    assert list(second["layers"]) == ["model.layers.3.mlp.experts"]
    for stage in (first, second):
        assert stage["facts"]["engine_ranks"] == 2
        assert stage["total"]["faults"] > 16, "the warm-up is not counted, but experts were evicted and loaded again"
    assert first["total"]["steps"] >= len(replies["paged"]["schedule"])


@pytest.mark.slow
def test_verify_compares_engines_of_two_ranks(two_cores):
    command = [sys.executable, "-m", "wisp.cli.main", "verify", str(MODEL), "--slots", "8", "--max-tokens", "4"]
    flags = ["--enforce-eager", "--tensor-parallel-size", "2"]
    ended = subprocess.run(
        [*command, *flags],
        capture_output=True,
        text=True,
        env={**os.environ, **two_cores, "COLUMNS": "120"},
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    row = next(line.split() for line in ended.stdout.splitlines() if "identical" in line)
    assert row[:3] == ["8", "14/14", "14/14"]
    hits, faults = row[-3:-1]
    assert 0 < float(hits.rstrip("%")) < 100
    assert int(faults) > 6 * 32, "both ranks are counted, as of one"


def test_layers_of_several_ranks_are_not_compared_with_themselves(monkeypatch):
    engine = SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=SimpleNamespace(world_size=2)))
    monkeypatch.setattr(arm, "engine_args_of", lambda request: "arguments")
    monkeypatch.setattr(arm, "start", {"arguments": engine}.get)
    monkeypatch.setenv(SCHEDULE_FILE_VARIABLE, "set anew by run")
    with pytest.raises(VerifyError, match="--layerwise looks at one rank, and this engine has 2"):
        arm.run(arm.ArmRequest("model", {"expert_slots": 4}, "workload", "result", layerwise=True))
