"""On a GPU, with CUDA graphs, a divided budget: what was planned is there, fits, and answers as unpaged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE, MODEL = Path(__file__).parent, Path(__file__).parents[2] / "demo" / "model"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start-plan")
    with (folder / "log").open("w") as log:
        done = subprocess.run(
            [sys.executable, str(HERE / "run_start_plan.py"), str(MODEL), str(folder / "result.json")],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            check=False,
        )
    if done.returncode:
        pytest.fail((folder / "log").read_text()[-4000:])
    return json.loads((folder / "result.json").read_text())


def test_slots_and_kv_are_those_that_were_told(found):
    planned, line = found["planned"], found["planned"]["told"][0]
    assert len(planned["told"]) == 5
    assert f": {planned['expert_slots']} of 32 expert slots a layer" in line
    assert f"{planned['kv_blocks']:,} KV blocks" in line
    assert planned["counted_slots"] == planned["expert_slots"] > 4, "more than it was loaded with"


def test_all_that_the_engine_takes_stays_within_the_budget(found):
    assert 0 < found["planned"]["taken_bytes"] <= found["planned"]["budget_bytes"]


def test_it_answers_as_the_unpaged_engine_with_as_many_blocks(found):
    assert found["planned"]["answers"] == found["unpaged"]["answers"]
    assert found["planned"]["faults"] > 0
