"""Sets of experts as the kernels keep them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def test_bits_flags_and_size_are_those_of_the_chosen_experts():
    script = Path(__file__).with_name("run_set_kernels.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
