"""Run the arms one after the other, each in a process of its own, and add their rows to results.json.

    python run.py                                   # everything: about 20 minutes on one H200
    python run.py --arms wisp:44,32 vllm-uva:32     # some of it; rows of one call are comparable with each other

Rows are kept by call, arm, budget and batch; only those of one call are compared with each other.
"""

import argparse
import datetime
import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

HERE = Path(__file__).parent
ARMS = (
    "vllm-resident:67",
    "wisp:44,32,23",
    "wisp:67",
    *(f"{arm}:{budget}" for budget in (23, 32, 44) for arm in ("vllm-uva", "vllm-prefetch")),
)
"""At 67 GiB everything is resident in every arm; wisp leaves the engine's kernel alone then, and cannot be resized."""
ZERO_COPY_GB_S = 51.0
"""What a kernel reads over this link (measured on an H200, PCIe 5 x16); the copy engine's rate stands in the rows."""
TIMEOUT_SECONDS = 300

console = Console()


def run_arm(arm: str, budget_gib: str, more: list[str]) -> list[dict[str, object]]:
    """One arm's reports, one for each budget."""
    command = [sys.executable, str(HERE / "arm.py"), "--arm", arm, "--budget-gib", budget_gib, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{arm} at {budget_gib} GiB ended with {done.returncode}:\n{done.stderr[-2000:]}")
    reports: list[dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return reports


def rows_of(
    report: dict[str, object], resident_step_s: dict[str, float], machine: str, call: str
) -> list[dict[str, object]]:
    """A row for each batch size; the floor is the resident step of the same call plus the missed bytes."""
    rows = []
    for batch, decode in report["decode"].items():
        floor = None
        if batch in resident_step_s:
            floor = resident_step_s[batch] + decode["moved_gib_a_step"] * 2**30 / (ZERO_COPY_GB_S * 1e9)
        rows.append(
            {
                **{name: report[name] for name in ("arm", "budget_gib", "expert_slots", "kv_tokens")},
                "batch": int(batch),
                "decode_tok_s": decode["decode_tok_s"],
                "step_s": decode["step_s"],
                "moved_gib_a_step": decode["moved_gib_a_step"] or None,
                "step_over_floor": decode["step_s"] / floor if floor and report["arm"] == "wisp" else None,
                **{name: report[name] for name in ("ttft_s", "start_s", "link_gb_s", "peak_gpu_gib", "peak_host_gib")},
                "machine": machine,
                "call": call,
            }
        )
    return rows


def merge(path: Path, reports: list[dict[str, object]], machine: str, call: str, command: str) -> None:
    """Add the rows of one call to the results."""
    results = json.loads(path.read_text()) if path.exists() else {"calls": {}, "rows": []}
    resident = {
        str(row["batch"]): row["step_s"]
        for row in results["rows"]
        if row["arm"] == "vllm-resident" and row["call"] == call
    }
    resident |= {b: d["step_s"] for r in reports if r["arm"] == "vllm-resident" for b, d in r["decode"].items()}
    fresh = [row for report in reports for row in rows_of(report, resident, machine, call)]

    def key(row: dict[str, object]) -> tuple[object, ...]:
        return row["call"], row["arm"], row["budget_gib"], row["batch"]

    taken = {key(row) for row in fresh}
    results["rows"] = sorted([row for row in results["rows"] if key(row) not in taken] + fresh, key=key)
    results["calls"][call] = {
        "commands": sorted({*results["calls"].get(call, {}).get("commands", []), command}),
        "machine": machine,
        "versions": {name: version(name) for name in ("vllm", "torch", "triton")},
        "routing": reports[0]["routing"],
    }
    path.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=ARMS, metavar="ARM:GIB")
    parser.add_argument("--results", type=Path, default=HERE / "results.json")
    parser.add_argument("--call", help="continue this one, on the machine that it ran on; the default is a new one")
    options, more = parser.parse_known_args()
    import torch

    machine = f"{torch.cuda.get_device_name()}, {platform.processor() or platform.machine()}"
    call = options.call or datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M")
    command = " ".join(["python", "benchmarks/iso_vram/run.py", *sys.argv[1:]])
    failed = []
    for number, name in enumerate(options.arms, 1):
        arm, budget_gib = name.split(":")
        try:
            with console.status(f"{number} of {len(options.arms)}: {arm} at {budget_gib} GiB"):
                reports = run_arm(arm, budget_gib, more)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failed.append(name)
            console.print(f"{name}: {error}", markup=False)
            continue
        merge(options.results, reports, machine, call, command)
        for report in reports:
            console.print(f"{arm} at {report['budget_gib']} GiB: {report['decode']} {report['ttft_s']}", markup=False)
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
