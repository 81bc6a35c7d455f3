"""Runs `wisp verify` with its engines in forks of this process, which has imported vLLM, in place of new ones.

python run_verify.py [ARGUMENT ...] RESULT.json
"""

import io
import json
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from wisp.cli.main import main as wisp
from wisp.engines.vllm.engine_process import environment
from wisp.engines.vllm.verify import arm, compare


def forked(request: Path, log: Path, variables: Mapping[str, str], _limit_seconds: float | None) -> int:
    """A `compare.Runner`."""
    process = get_context("fork").Process(target=_arm, args=(request, log, variables))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _arm(request: Path, log: Path, variables: Mapping[str, str]) -> None:
    with log.open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    os.environ |= environment(**variables)
    sys.argv = ["arm", str(request)]
    arm.main()


def main(*arguments: str, result: str) -> None:
    """The exit code, and what was printed."""
    compare.run_arm = partial(compare.run_arm, runner=forked)
    sys.argv = ["wisp", "verify", *arguments]
    code: object = 0
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            wisp()
        except SystemExit as end:
            code = end.code
    Path(result).write_text(json.dumps({"code": code, "out": printed.getvalue()}))


if __name__ == "__main__":
    main(*sys.argv[1:-1], result=sys.argv[-1])
