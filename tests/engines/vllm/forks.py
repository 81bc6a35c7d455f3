"""Runs scripts, one after another, in forks of a process that has imported what all of them do.

    python forks.py MODULE...

Importing vLLM takes ten seconds, longer than most of the scripts. A request on standard input is one line of JSON,
{"script", "arguments", "environment", "log"}; the answer is one line too, the status with which the fork has ended.
Whatever a script imports beyond the modules, patches or starts ends with it.
"""

import importlib
import json
import os
import runpy
import sys
from typing import Any


def main(*modules: str) -> None:
    """Answer until standard input ends; a fork leaves by way of its script."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for whatever an import has to say
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if process == 0:
            run(request)
            return
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), file=answers, flush=True)


def run(request: dict[str, Any]) -> None:
    """As `python SCRIPT ARGUMENTS` would, with this environment and nothing to read."""
    log, nothing = os.open(request["log"], os.O_WRONLY | os.O_CREAT), os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ |= request["environment"]
    sys.argv = [request["script"], *request["arguments"]]
    runpy.run_path(request["script"], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
