"""Engines in processes that are forked from one that has imported vLLM: most of a small engine's start is imports."""

import multiprocessing
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from wisp.engines.vllm.engine_process import CPU_ENVIRONMENT

ARM = "wisp.engines.vllm.verify.arm"


def prepare() -> None:
    """Say what all engines import; call it before the first `run`."""
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    multiprocessing.get_context("forkserver").set_forkserver_preload(["engine_imports"])


def run(request: Path, log: Path, variables: Mapping[str, str], limit_seconds: float | None) -> int | None:
    """See `wisp.engines.vllm.verify.compare.Runner`."""
    log.touch()
    process = multiprocessing.get_context("forkserver").Process(target=_arm, args=(request, log, dict(variables)))
    process.start()
    process.join(limit_seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        return None
    return process.exitcode


def _arm(request: Path, log: Path, variables: dict[str, str]) -> None:
    with log.open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ |= CPU_ENVIRONMENT | dict(os.environ) | variables
    if not _cuda_works():
        print("CUDA does not work in a forked process; starting anew", flush=True)
        os.execv(sys.executable, [sys.executable, "-m", ARM, str(request)])
    from wisp.engines.vllm.verify import arm

    sys.argv = [ARM, str(request)]
    arm.main()


def _cuda_works() -> bool:
    """Whether it works, if this machine has it: not in a process that was forked after CUDA had been initialised."""
    import torch

    if torch.version.cuda is None:
        return True
    try:
        torch.cuda.init()
    except RuntimeError:
        return False
    return True
