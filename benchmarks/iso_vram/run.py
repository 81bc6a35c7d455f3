"""Run the arms, each in a process of its own, and add their rows to results.json.

    python run.py                                              # everything: about 15 minutes on one H200
    python run.py --groups wisp:44,32+vllm-uva:32 wisp:67      # some of it

Arms of a group start at the same time and are measured one after the other. Rows are kept by call, arm, budget and
batch; only those of one call are compared with each other.
"""

import argparse
import datetime
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

sys.path.append(str(Path(__file__).parents[1] / "shared"))
from together import Outcome, run_together

HERE = Path(__file__).parent
GROUPS = (
    "vllm-resident:67+wisp:67",
    "wisp:23,32,10,13.4,16.7,44",
    "vllm-uva:23+vllm-uva:32+vllm-uva:44",
    *(f"vllm-prefetch:{budget}" for budget in (32, 23, 44)),
)
"""At 67 GiB everything is resident in every arm; wisp leaves the engine's kernel alone then, and cannot be resized.
A group fits 128 GiB of GPU memory and 110 GiB of host memory."""
ZERO_COPY_GB_S = 51.0
"""What a kernel reads over this link (measured on an H200, PCIe 5 x16); the copy engine's rate stands in the rows."""

console = Console()


def command_of(name: str, more: list[str]) -> list[str]:
    """What runs an arm, such as wisp:44,32."""
    arm, budget_gib = name.split(":")
    return [sys.executable, str(HERE / "arm.py"), "--arm", arm, "--budget-gib", budget_gib, *more]


def rows_of(
    report: dict[str, object], free_gpu_bytes: int, resident_step_s: dict[str, float], machine: str, call: str
) -> list[dict[str, object]]:
    """A row for each batch size; the floor is the resident step of the same call plus the missed bytes.

    The peak of GPU memory is what its end has set free (`free_gpu_bytes`), less what it held less at the time.
    """
    rows = []
    peak_gib = (free_gpu_bytes - report["free_gpu_bytes"]) / 2**30
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
                "step_s_of_rounds": decode["step_s_of_rounds"],
                "moved_gib_a_step": decode["moved_gib_a_step"] or None,
                "step_over_floor": decode["step_s"] / floor if floor and report["arm"] == "wisp" else None,
                **{name: report[name] for name in ("prefill_profile",) if name in report},
                **{name: report[name] for name in ("ttft_s", "ttft_s_of_prompts")},
                **{name: report[name] for name in ("start_s", "link_gb_s", "peak_host_gib")},
                "peak_gpu_gib": peak_gib,
                "machine": machine,
                "call": call,
            }
        )
    return rows


def merge(path: Path, outcome: Outcome, machine: str, call: str, command: str) -> None:
    """Add the rows of one arm to the results."""
    reports = outcome.report
    results = json.loads(path.read_text()) if path.exists() else {"calls": {}, "rows": []}
    resident = {
        str(row["batch"]): row["step_s"]
        for row in results["rows"]
        if row["arm"] == "vllm-resident" and row["call"] == call
    }
    resident |= {b: d["step_s"] for r in reports if r["arm"] == "vllm-resident" for b, d in r["decode"].items()}
    fresh = [row for report in reports for row in rows_of(report, outcome.free_gpu_bytes, resident, machine, call)]

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
    parser.add_argument("--groups", nargs="+", default=GROUPS, metavar="ARM:GIB+ARM:GIB", help="each starts together")
    parser.add_argument("--results", type=Path, default=HERE / "results.json")
    parser.add_argument("--call", help="continue this one, on the machine that it ran on; the default is a new one")
    parser.add_argument("--timeout", type=float, default=300, help="seconds to start a group, and to measure an arm")
    options, more = parser.parse_known_args()
    import torch

    machine = f"{torch.cuda.get_device_name()}, {platform.processor() or platform.machine()}"
    call = options.call or datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M")
    command = " ".join(["python", "benchmarks/iso_vram/run.py", *sys.argv[1:]])
    failed = []
    for number, group in enumerate(options.groups, 1):
        commands = {name: command_of(name, more) for name in group.split("+")}
        with console.status(f"group {number} of {len(options.groups)}: {group}"):
            for outcome in run_together(commands, options.timeout):
                if outcome.failed:
                    failed.append(outcome.name)
                    console.print(f"{outcome.name}: {outcome.failed}", markup=False)
                    continue
                merge(options.results, outcome, machine, call, command)
                for report in outcome.report:
                    told = f"{report['decode']} {report['ttft_s']} {report.get('prefill_profile', '')}"
                    console.print(f"{report['arm']} at {report['budget_gib']} GiB: {told}", markup=False)
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
