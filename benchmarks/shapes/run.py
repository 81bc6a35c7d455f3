"""Run every shape in a process of its own and keep its rows in results.json, keyed by the model.

    python benchmarks/shapes/run.py                              # all: about six minutes on one H200
    python benchmarks/shapes/run.py --groups olmoe-1b-7b+gpt-oss-20b mixtral-8x7b
    python benchmarks/shapes/run.py --tiny --results /tmp/r.json # two small layers each, without a GPU

Shapes of a group start at the same time and are measured one after the other. Other options go to arm.py. A shape that
fails leaves its reason in results.json in place of rows, and the exit code 1.
"""

import argparse
import datetime
import json
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).parents[1] / "shared"))
from together import Outcome, run_together
from versions import versions

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

GROUPS = ("mixtral-8x7b+olmoe-1b-7b", "minimax-m2+deepseek-v2-lite+gpt-oss-20b")
"""Each fits 100 GiB of host memory."""

console = Console(width=160)


def report_of(outcome: Outcome) -> dict[str, Any]:
    """The shape's report, with its peak of GPU memory; one that ended without has a `failed` with its last words."""
    if outcome.failed:
        return {"model": outcome.name, "failed": outcome.failed}
    report: dict[str, Any] = dict(outcome.report)
    if "free_gpu_bytes" in report:
        report["peak_gpu_gib"] = (outcome.free_gpu_bytes - report.pop("free_gpu_bytes")) / 2**30
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


def main() -> int:
    """Run what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", default=GROUPS, metavar="MODEL+MODEL", help="each starts together")
    parser.add_argument("--timeout", type=float, default=300, help="seconds to start a group, and to measure a shape")
    parser.add_argument("--results", type=Path, default=HERE / "results.json")
    options, more = parser.parse_known_args()
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    if device == "no GPU" and "--tiny" not in more:
        parser.error("this fills up to 84 GiB of host memory for a GPU, and there is none here; --tiny tries it out")
    reports = []
    for number, group in enumerate(options.groups, 1):
        start = time.monotonic()
        commands = {model: [sys.executable, str(HERE / "arm.py"), model, *more] for model in group.split("+")}
        with console.status(f"group {number} of {len(options.groups)}: {group}"):
            for outcome in run_together(commands, options.timeout):
                report = report_of(outcome)
                reports.append(report)
                call = {
                    "command": shlex.join(["python", "benchmarks/shapes/run.py", *sys.argv[1:]]),
                    "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
                    "machine": f"{device}, {platform.processor() or platform.machine()}",
                    "versions": versions("triton"),
                }
                merge(options.results, report, call)
                ended = next((f"{key}: {report[key]}" for key in ("refused", "failed") if key in report), "done")
                console.print(f"{outcome.name}, {time.monotonic() - start:.0f} s: {ended}", markup=False)
    console.print(table_of([row for report in reports for row in rows_of(report)]))
    return int(any("failed" in report for report in reports))


if __name__ == "__main__":
    sys.exit(main())
