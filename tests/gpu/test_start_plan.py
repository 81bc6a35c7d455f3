"""On a GPU, with CUDA graphs, a divided budget: what was planned is there, fits, and answers as unpaged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE, SMALL_MODEL = Path(__file__).parent, Path(__file__).parents[2] / "demo" / "model"
LARGE = {"hidden_size": 1024, "moe_intermediate_size": 512, "num_experts": 64, "num_hidden_layers": 8}
"""Experts of 1.5 GiB, of which some find room in a budget of 2 GiB, whatever else the engine takes of it."""
EXPERTS = {"some experts": 64, "all experts": 32}


def run(folder, model, *blocks):
    """What one engine says, in a process of its own."""
    result = folder / f"{len(blocks)}.json"
    with (folder / "log").open("w") as log:
        done = subprocess.run(
            [sys.executable, str(HERE / "run_start_plan.py"), str(model), str(result), *map(str, blocks)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            check=False,
        )
    if done.returncode:
        pytest.fail((folder / "log").read_text()[-4000:])
    return json.loads(result.read_text())


@pytest.fixture(scope="module", params=EXPERTS)
def found(request, checkpoint, tmp_path_factory):
    """Of two models: slots grow in place for one, and for the other nothing is left to page."""
    folder = tmp_path_factory.mktemp("start-plan")
    model = SMALL_MODEL if request.param == "all experts" else checkpoint(initializer_range=0.05, **LARGE)
    planned = run(folder, model)
    unpaged = run(folder, model, planned["kv_blocks"])
    return {"planned": planned, "unpaged": unpaged, "experts": EXPERTS[request.param]}


def test_slots_and_kv_are_those_that_were_told(found):
    planned, line = found["planned"], found["planned"]["told"][0]
    assert len(planned["told"]) == 5
    assert f": {planned['expert_slots']} of {found['experts']} expert slots a layer" in line
    assert f"{planned['kv_blocks']:,} KV blocks" in line
    assert planned["counted_slots"] == planned["expert_slots"] > 4, "more than it was loaded with"
    assert (planned["expert_slots"] == found["experts"]) is (found["experts"] == 32), "which of the two cases it is"


def test_all_that_the_engine_takes_stays_within_the_budget(found):
    assert 0 < found["planned"]["taken_bytes"] <= found["planned"]["budget_bytes"]


def test_it_answers_as_the_unpaged_engine_with_as_many_blocks(found):
    assert found["planned"]["answers"] == found["unpaged"]["answers"]
    assert (found["planned"]["faults"] > 0) is (found["planned"]["expert_slots"] < found["experts"])
