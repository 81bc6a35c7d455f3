"""How long `wisp plan` takes for published models, as a user waits for it; writes results.json.

Run: python benchmarks/plan_speed/run.py --machine "2-core x86-64 VM"
"""

import argparse
import json
import platform
import subprocess
import sysconfig
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np

import wisp

CONFIGS = Path(__file__).parents[2] / "tests" / "allocator" / "configs"
BUDGETS = {
    "qwen3-30b-a3b": "24GiB",
    "olmoe-1b-7b": "12GiB",
    "mixtral-8x7b": "48GiB",
    "deepseek-v3": "96GiB",
    "minimax-m2": "80GiB",
    "jamba-v0.1": "48GiB",
    "kimi-vl-a3b": "24GiB",
}
CALLS, BOUND_SECONDS = 3, 2.0


def plan_seconds(model: str, budget: str) -> list[float]:
    """From the start of the command to its end, several times."""
    command = [Path(sysconfig.get_path("scripts")) / "wisp", "plan", CONFIGS / f"{model}.json", "--gpu-memory", budget]
    taken = []
    for _ in range(CALLS):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        taken.append(round(time.perf_counter() - start, 3))
    return taken


def main() -> None:
    """Measure, write, and fail if a model takes longer than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", required=True, help='the kind of machine in words: "2-core x86-64 VM"')
    machine = parser.parse_args().machine
    models = {}
    for model, budget in BUDGETS.items():
        seconds = plan_seconds(model, budget)
        models[model] = {"gpu_memory": budget, "seconds": seconds, "median_seconds": median(seconds)}
    results = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "versions": {"wisp": wisp.__version__, "python": platform.python_version(), "numpy": np.__version__},
        "bound_seconds": BOUND_SECONDS,
        "models": models,
    }
    text = json.dumps(results, indent=2)
    Path(__file__).with_name("results.json").write_text(text + "\n")
    print(text)
    slow = [model for model, found in models.items() if found["median_seconds"] >= BOUND_SECONDS]
    if slow:
        raise SystemExit(f"{BOUND_SECONDS} s or more: {', '.join(slow)}")


if __name__ == "__main__":
    main()
