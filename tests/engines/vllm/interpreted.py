"""Lets vLLM run its kernels in Triton's interpreter; to be imported before vLLM, which looks for Triton at once."""

import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).parents[2]))

import triton_interpreter  # noqa: F401
from triton.backends import backends

backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)  # vLLM asks for one
