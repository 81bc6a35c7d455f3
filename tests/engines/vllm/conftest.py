"""Real engines run in processes of their own; what one process has answered is kept for the session."""

import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from workload import EAGER, POLICIES, SLOTS, make_crowded_request, make_request

HERE = Path(__file__).parent
ENGINE_SCRIPTS = ("run_engines.py", "run_two_engines.py", "run_verify.py", "test_integrity.py")
"""Those that start engines; the others run vLLM's kernels for a GPU on stand-ins."""
IMPORTS = {True: ("vllm.entrypoints.llm", "models_looked_at_here"), False: ("stand_ins", "models_looked_at_here")}
"""Whether a script starts engines -> what it is forked with."""

Engines = Callable[..., dict[str, Any]]


class Forks:
    """Scripts that share an environment and what they import; see forks.py."""

    def __init__(self, modules: tuple[str, ...], environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "forks.py"), *modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env={"VLLM_LOGGING_LEVEL": "WARNING", **os.environ, **environment},
                start_new_session=True,
            )

    def run(self, **request: Any) -> int:
        """How the script has ended."""
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BaseException:  # such as a time limit: no answer may be left for the next
            self.end()
            raise
        if not answer:
            pytest.fail(f"what scripts are forked from has ended:\n{self._log.read_text()[-4000:]}")
        return int(answer)

    def end(self) -> None:
        """With whatever a script has left running."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    @property
    def is_running(self) -> bool:
        """Whether another script can be run."""
        return self._process.poll() is None


@pytest.fixture(scope="session", autouse=True)
def _models_are_looked_at_here() -> None:
    """Where tests have vLLM in this process, and make its configurations."""
    if "vllm" in sys.modules:
        runpy.run_path(str(HERE / "models_looked_at_here.py"))


@pytest.fixture(scope="session")
def run_script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """`run_script(script, *arguments, **environment)`: what the script writes to the file that is its last argument."""
    forks: dict[str, Forks] = {}

    def run_script(script: str, *arguments: object, **environment: str) -> Any:
        folder = tmp_path_factory.mktemp("run")
        result, log = folder / "result.json", folder / "log"
        modules = IMPORTS[script in ENGINE_SCRIPTS]
        at_import = {name: value for name, value in environment.items() if not name.startswith("VLLM_")}
        key = json.dumps([modules, at_import])
        if key not in forks or not forks[key].is_running:
            forks[key] = Forks(modules, at_import, folder / "imports")
        ended = forks[key].run(
            script=str(HERE / script),
            arguments=[*map(str, arguments), str(result)],
            environment=environment,
            log=str(log),
        )
        if ended != 0:
            pytest.fail(f"{script} ended with {ended}:\n{log.read_text()[-4000:]}")
        return json.loads(result.read_text())

    yield run_script
    for each in forks.values():
        each.end()


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
