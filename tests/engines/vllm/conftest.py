"""Real engines run in processes of their own; what one process has answered is kept for the session."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workload import EAGER, POLICIES, SLOTS, make_crowded_request, make_request

HERE = Path(__file__).parent

Engines = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def run_script(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """`run_script(script, *arguments, **environment)`: what the script writes to the file that is its last argument."""

    def run_script(script: str, *arguments: object, **environment: str) -> Any:
        folder = tmp_path_factory.mktemp("run")
        result, log = folder / "result.json", folder / "log"
        with log.open("w") as output:
            finished = subprocess.run(
                [sys.executable, str(HERE / script), *map(str, arguments), str(result)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                check=False,
            )
        if finished.returncode != 0:
            pytest.fail(f"{script} ended with {finished.returncode}:\n{log.read_text()[-4000:]}")
        return json.loads(result.read_text())

    return run_script


@pytest.fixture(scope="session")
def engines(run_script: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Engines:
    """`engines({name: request, ...}, **environment)`: the replies by name; see run_engines.py."""
    answered: dict[str, dict[str, Any]] = {}

    def engines(requests: dict[str, dict[str, Any]], **environment: str) -> dict[str, Any]:
        key = json.dumps([requests, environment])
        if key not in answered:
            file = tmp_path_factory.mktemp("requests") / "requests.json"
            file.write_text(json.dumps(list(requests.values())))
            replies = run_script("run_engines.py", file, **environment)
            answered[key] = dict(zip(requests, replies, strict=True))
        return answered[key]

    return engines


@pytest.fixture(scope="session")
def qwen(engines: Engines, checkpoint: Callable[..., Path]) -> dict[str, Any]:
    """Replies of the stock engine ("stock"), of several numbers of slots, of the policies, and of a broken one."""
    model = checkpoint("qwen3_moe")
    return engines(
        {
            "stock": make_request(model),
            **{str(slots): make_request(model, {"expert_slots": slots}) for slots in SLOTS},
            **{policy: make_request(model, {"expert_slots": 5, "policy": policy}) for policy in POLICIES},
            "broken": make_request(model, {"expert_slots": 5, "break_expert": True}),
            "stock again": make_request(model, max_num_seqs=64),
            "many sequences": make_request(model, {"expert_slots": 4}, max_num_seqs=64),
            "stock, crowded": make_crowded_request(model),
            "crowded": make_crowded_request(model, {"expert_slots": 5}),
        },
        **EAGER,
    )
