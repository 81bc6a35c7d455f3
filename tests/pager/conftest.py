"""Tiny tensors are computed faster by one thread; and Triton's kernels are interpreted in processes of their own."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def run_script(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """`run_script(name)`: what a script of this folder writes to the file that is its argument."""

    def run_script(name: str) -> Any:
        results = tmp_path_factory.mktemp("run") / "results.json"
        command = [sys.executable, Path(__file__).with_name(name), results]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(results.read_text())

    return run_script
