"""The scripts of benchmarks/, imported by path."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """`script("shapes/run.py")`: the module, which finds its neighbours as it does when it is run."""

    def script(path: str) -> ModuleType:
        file = BENCHMARKS / path
        monkeypatch.syspath_prepend(str(file.parent))
        name = f"benchmarks_{path.removesuffix('.py').replace('/', '_')}"
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)  # where dataclasses look themselves up
        spec.loader.exec_module(module)
        return module

    return script
