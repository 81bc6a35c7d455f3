"""`import wisp` is light: no engine, no torch, and quick."""

import subprocess
import sys

IMPORT = """
import sys, time
start = time.perf_counter()
import wisp
seconds = time.perf_counter() - start
heavy = {"torch", "vllm", "transformers", "matplotlib", "typer"} & set(sys.modules)
missing = [name for name in wisp.__all__ if not hasattr(wisp, name)]
print(seconds, *sorted(heavy), *missing)
"""


def run_import():
    out = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True).stdout
    seconds, *surprises = out.split()
    return float(seconds), surprises


def test_import_loads_no_engine_and_every_public_name_exists():
    _, surprises = run_import()
    assert surprises == []


def test_import_is_quick():
    best = min(run_import()[0] for _ in range(3))
    assert best < 1.0  # 0.2 s by itself, most of it numpy; other tests may be running beside it
