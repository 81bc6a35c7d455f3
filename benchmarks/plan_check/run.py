"""Predicted against measured seconds of a decode step: demo model, four slot counts, two contexts, three domains.

    python benchmarks/plan_check/run.py               # calibrates first; about two minutes on a GPU
    python benchmarks/plan_check/run.py --calibration c.json --engine '{"enforce_eager": true}'

Prediction: a recorded trace of each case gives its faults by `wisp.simulate`, and `wisp calibrate` what a step and a
fault cost. Measurement: the engine as it is served, answering the same prompt. Neither knows the other.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from wisp.allocator import Calibration, read_model_shape
from wisp.allocator.costs import Costs
from wisp.recording import Recording
from wisp.simulate import simulate

HERE, DEMO = Path(__file__).parent, Path(__file__).parents[2] / "demo"
SLOTS, CONTEXTS = (8, 12, 16, 24), (64, 1024)
WARM_STEPS, TOKENS = 32, 192
BOUND = 0.15
MODEL = DEMO / "model"

console = Console()


def cases() -> list[dict[str, Any]]:
    """One for each domain and context: its first question, behind text of all domains."""
    conversations = json.loads((DEMO / "prompts.json").read_text())["conversations"]
    filler = " ".join(turn for conversation in conversations for turn in conversation["turns"])
    return [
        {"name": f"{each['domain']}-{context}", "domain": each["domain"], "context": context}
        | {"text": each["turns"][0], "filler": filler}
        for each in conversations
        for context in CONTEXTS
    ]


def run(words: list[str], folder: Path) -> None:
    """A process whose output is kept; `SystemExit` with its end if it fails."""
    log = folder / f"{Path(words[1]).stem if words[1] != '-m' else 'calibrate'}.log"
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", **os.environ}
    with log.open("w") as output:
        done = subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{log.read_text()[-3000:]}")


def calibrate(folder: Path, engine: dict[str, Any]) -> Calibration:
    """By the command, with the flags that the measured engines get."""
    flags = ["--enforce-eager"] if engine.get("enforce_eager") else []
    words = [sys.executable, "-m", "wisp.cli.main", "calibrate", str(MODEL), "-o", str(folder / "c.json"), *flags]
    run([*words, "--max-model-len", "2048"], folder)
    return Calibration.load(folder / "c.json")


def predict(costs: Costs, recording: Recording, slots: int, context: int) -> dict[str, float]:
    """The mean decode step after the first `WARM_STEPS`, by the trace and the calibration."""
    routing = recording.phase("decode")
    replay = simulate(routing, slots)
    faults = float(replay.faults[:, WARM_STEPS:].sum()) / (routing.steps - WARM_STEPS)
    experts = float(routing.widths()[:, WARM_STEPS:].sum()) / (routing.steps - WARM_STEPS)
    tokens = context + (WARM_STEPS + routing.steps) / 2
    resident = costs.decode_seconds(experts, tokens * costs.shape.kv_bytes_a_token(), 1.0)
    return {"faults": faults, "resident_s": resident, "predicted_s": resident + faults * costs.fault_seconds}


def main() -> None:
    """Calibrate, record, predict, measure, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", type=Path, help="in place of calibrating")
    parser.add_argument("--engine", type=json.loads, default={}, help="more arguments of the measured engines, as JSON")
    parser.add_argument("--slots", type=int, nargs="+", default=SLOTS)
    parser.add_argument("--results", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    shape = read_model_shape(MODEL)
    longest = max(CONTEXTS) + TOKENS + 64
    request = {
        "model": str(MODEL),
        "cases": cases(),
        "slots": options.slots,
        "tokens": TOKENS,
        "warm": WARM_STEPS,
        "longest": longest,
        "kv_bytes": 2 * (longest + 128) * shape.kv_bytes_a_token(),
        "num_experts": shape.num_experts,
        "engine": options.engine,
    }
    with tempfile.TemporaryDirectory(prefix="wisp-plan-check-") as name, console.status("calibrating") as status:
        folder = Path(name)
        (folder / "request.json").write_text(json.dumps(request))
        rates = Calibration.load(options.calibration) if options.calibration else calibrate(folder, options.engine)
        for step in ("record", "measure"):
            status.update(f"engines: {step}")
            run([sys.executable, str(HERE / "engines.py"), step, str(folder)], folder)
        recordings = {case["name"]: Recording.load(folder / f"{case['name']}.npz") for case in request["cases"]}
        prompts = json.loads((folder / "prompts.json").read_text())
        measured = json.loads((folder / "rows.json").read_text())
    costs, of_name = Costs(shape, rates), {case["name"]: case for case in request["cases"]}
    rows = []
    for row in measured:
        case = of_name[row["case"]]
        context = len(prompts[case["name"]])
        told = predict(costs, recordings[case["name"]], row["slots"], context)
        ratio = told["predicted_s"] / row["step_s"]
        rows.append({**row, "domain": case["domain"], "prompt_tokens": context, **told, "ratio": ratio})
    report(rows)
    worst = max(abs(row["ratio"] - 1) for row in rows)
    results = {
        "command": " ".join(["python", "benchmarks/plan_check/run.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d"),
        "machine": rates.machine,
        "bound": BOUND,
        "worst": worst,
        "rows_within_bound": sum(abs(row["ratio"] - 1) <= BOUND for row in rows),
        "rows": rows,
        "calibration": asdict(rates),
    }
    options.results.write_text(json.dumps(results, indent=1) + "\n")
    console.print(f"{results['rows_within_bound']} of {len(rows)} within {BOUND:.0%}; the worst is off by {worst:.1%}")


def report(rows: list[dict[str, Any]]) -> None:
    """The table."""
    table = Table("domain", "prompt", "slots", "faults a step", "predicted ms", "measured ms", "median ms", "ratio")
    for row in rows:
        cells = (row["domain"], row["prompt_tokens"], row["slots"], f"{row['faults']:.2f}")
        times = (f"{row[name] * 1e3:.3f}" for name in ("predicted_s", "step_s", "step_median_s"))
        table.add_row(*map(str, cells), *times, f"{row['ratio']:.3f}")
    console.print(table)


if __name__ == "__main__":
    main()
