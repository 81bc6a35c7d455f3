"""Compare paged engines of two ranks with unpaged ones of the same form, bit by bit, and time both.

    python run.py                                  # on a machine with two GPUs: about 3 minutes
    python run.py --forms ep --modes eager         # some of it; rows of other forms and modes stay in results.json
    python run.py --two-nodes                      # on a machine with one GPU, which the ranks share in turn
    python run.py --cpu                            # on two cores: tp, without CUDA graphs; with --two-nodes, too

Each engine is a process of its own with a time limit. They start side by side, with CUDA graphs the unpaged ones first,
and decode one by one.
"""

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from wisp.engines.vllm.engine_process import engine_flags
from wisp.engines.vllm.verify.arm import ArmResult
from wisp.engines.vllm.verify.compare import judge
from wisp.engines.vllm.verify.workload import TEXTS, standard_workload
from wisp.errors import VerifyError
from wisp.pager.counters import hit_ratio

sys.path.append(str(Path(__file__).parents[1] / "shared"))
from arm_process import ArmProcess
from versions import versions

HERE = Path(__file__).parent
FORMS = {
    "tp": ("--tensor-parallel-size", "2"),
    "ep": ("--tensor-parallel-size", "2", "--enable-expert-parallel"),
    "pp": ("--pipeline-parallel-size", "2"),
    "ray": ("--tensor-parallel-size", "2", "--distributed-executor-backend", "ray"),
}
MODES = {
    "graphs": (),
    "eager": ("--enforce-eager",),
    "compiled": ("--compilation-config", '{"cudagraph_mode": "NONE"}'),
    "captured": ("--compilation-config", '{"mode": 0}'),
}
"""As vLLM serves by default; without CUDA graphs and torch.compile; with one of the two alone, to tell them apart."""
USUAL_MODES = ("graphs", "eager")
COLUMNS = ("form", "mode", "arm", "slots", "tokens", "logprobs", "max diff", "steps", "hits", "tok/s 1", "tok/s 8", "")

console = Console(width=130)


def arms_of(form: str, mode: str, home: Path, options: argparse.Namespace) -> list[ArmProcess]:
    """The engines that one form and mode needs."""
    names = ["unpaged", "paged"] if mode == "eager" else ["unpaged", "again", "paged"]
    if mode == "eager" and form in ("tp", "ep"):
        names += ["broken"] if options.cpu else ["host", "broken"]
    return [
        ArmProcess(
            form,
            mode,
            name,
            None if name in ("unpaged", "again") else options.slots,
            home / f"{form}-{mode}-{name}",
            nodes=2 if options.two_nodes else 1,
        )
        for name in names
    ]


def waves_of(arms: list[ArmProcess], at_once: int) -> Iterator[list[ArmProcess]]:
    """Those that start side by side, so many at once; what unpaged engines compile is there before others need it.

    Code that is compiled twice may differ in its last bits, since the compiler takes the fastest of some variants.
    """
    compiling = [arm for arm in arms if arm.mode in ("graphs", "compiled") and arm.name == "unpaged"]
    for group in (compiling, [arm for arm in arms if arm not in compiling]):
        for first in range(0, len(group), at_once):
            yield group[first : first + at_once]


def row_of(arm: ArmProcess, unpaged: ArmProcess) -> dict[str, Any]:
    """What results.json keeps of one engine."""
    row: dict[str, Any] = {"form": arm.form, "mode": arm.mode, "arm": arm.name, "expert_slots": arm.slots}
    for each in (arm, unpaged):
        if "error" in each.report:
            return {**row, "error": each.report["error"]}
    result, oracle = (load(each) for each in (arm, unpaged))
    row |= {"start_s": round(arm.report["start_s"], 1), "steps": len(result.steps)}
    if arm.report["decode_tok_s"]:
        row["decode_tok_s"] = {batch: round(rate, 1) for batch, rate in arm.report["decode_tok_s"].items()}
    if arm is unpaged:
        return row
    verdict = judge(oracle, result)
    row |= {**asdict(verdict), "identical": verdict.identical, "counters": result.counters}
    return row if verdict.identical else {**row, "differs_from_token": first_differences(oracle, result)}


def first_differences(oracle: ArmResult, result: ArmResult) -> dict[int, int]:
    """Request -> the first token of its answer whose log-probabilities differ, of those that differ."""
    firsts = {}
    for request, (one, other) in enumerate(zip(oracle.answers, result.answers, strict=True)):
        pairs = zip(one.logprobs, other.logprobs, strict=False)
        first = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
        if first is not None:
            firsts[request] = first
    return firsts


def load(arm: ArmProcess) -> ArmResult:
    """Its answers, steps and counters."""
    known = {name: arm.report[name] for name in ("answers", "steps", "counters", "seconds", "layers")}
    path = arm.home / "as_verify.json"
    path.write_text(json.dumps(known))
    try:
        return ArmResult.load(path)
    except KeyError as error:  # pragma: no cover - a change of the report's form
        raise VerifyError(f"the report of {arm.home.name} lacks {error}") from error


def is_right(row: dict[str, Any]) -> bool:
    """Identical where it has to be, different where experts are wrong on purpose."""
    if "error" in row:
        return False
    if row["arm"] == "unpaged":
        return True
    return not row["identical"] and row["same_schedule"] if row["arm"] == "broken" else row["identical"]


def show(rows: list[dict[str, Any]]) -> None:
    """The table of this call."""
    table = Table(*COLUMNS, title="two ranks, paged against unpaged of the same form")
    for row in rows:
        about = [row["form"], row["mode"], row["arm"], str(row["expert_slots"] or "")]
        if "error" in row:
            table.add_row(*about, *[""] * 7, "[red]ERROR[/red]")
            continue
        cells = [""] * 3
        if "requests" in row:
            cells = [f"{row[key]}/{row['requests']}" for key in ("same_tokens", "same_logprobs")]
            cells.append(f"{row['largest_difference']:.3g}")
        steps = f"{row['steps']}" if row.get("same_schedule", True) else f"{row['steps']} DIFFERENT"
        hits = f"{hit_ratio(row['counters']):.1%}" if row.get("counters") else ""
        rates = [f"{row['decode_tok_s'][batch]:.1f}" if "decode_tok_s" in row else "" for batch in ("1", "8")]
        word = "" if row["arm"] == "unpaged" else "identical" if row["identical"] else "DIFFERENT"
        table.add_row(*about, *cells, steps, hits, *rates, f"[{'green' if is_right(row) else 'red'}]{word}")
    console.print(table)
    for row in rows:
        if "error" in row:
            console.print(f"{row['form']} {row['mode']} {row['arm']}: {row['error']}", markup=False, highlight=False)


def save(rows: list[dict[str, Any]], machine: str, call: str, out: Path) -> None:
    """Replace the rows of the same key in results.json."""
    results = json.loads(out.read_text()) if out.exists() else {"calls": {}, "rows": []}

    def key(row: dict[str, Any]) -> tuple[str, ...]:
        return row["machine"], row["form"], row["mode"], row["arm"]

    fresh = [{**row, "machine": machine, "call": call} for row in rows]
    taken = {key(row) for row in fresh}
    results["rows"] = [row for row in results["rows"] if key(row) not in taken] + fresh
    results["calls"][call] = {
        "command": " ".join(["python", "benchmarks/parallel/run.py", *sys.argv[1:]]),
        "machine": machine,
        "versions": versions("triton", "ray"),
    }
    out.write_text(json.dumps(results, indent=1) + "\n")


def variables_of(*, cpu: bool) -> tuple[dict[str, str], tuple[str, ...]]:
    """Environment of the engines, and flags beyond their form and mode."""
    common = {"VLLM_LOGGING_LEVEL": "WARNING", "TORCHINDUCTOR_COMPILE_THREADS": "4", "VLLM_NO_USAGE_STATS": "1"}
    if cpu:
        cores = "|".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
        return {**common, "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": cores}, ()
    # reductions that need multicast between GPUs do not exist on every machine with two; and vLLM checks at the start
    # that as much memory is free as it may use, while others are taking theirs
    flags = ("--kv-cache-memory-bytes", str(256 << 20), "--gpu-memory-utilization", "0.05")
    return {**common, "VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}, flags


def main() -> None:
    """Run what is asked for; exit code 1 if anything is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = [form for form in FORMS if form != "ray" or find_spec("ray")]
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=here)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(USUAL_MODES))
    parser.add_argument(
        "--slots", type=int, default=8, help="of 32 experts, and of 16 a rank under ep; a token takes 4"
    )
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--at-once", type=int, default=8, help="engines that start side by side")
    parser.add_argument("--timeout-s", type=float, default=150.0, help="for each engine to start and answer")
    parser.add_argument("--cpu", action="store_true", help="on two cores: tp without CUDA graphs")
    parser.add_argument("--two-nodes", action="store_true", help="a node for each rank, both here, on one GPU; untimed")
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    if options.cpu:
        options.modes = ["eager"]
        options.forms = [form for form in options.forms if form == "tp"]
    if options.two_nodes:
        options.forms = [form for form in options.forms if form != "ray"]
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    machine = "2 cores" if options.cpu else f"1 x {gpu}" if options.two_nodes else f"2 x {gpu}"
    machine += ", as two nodes" if options.two_nodes else ""
    call = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M")
    variables, flags = variables_of(cpu=options.cpu)
    rows = []
    with tempfile.TemporaryDirectory(prefix="wisp-parallel-") as folder:
        home = Path(folder)
        standard_workload(TEXTS, max_tokens=options.max_tokens).save(home / "workload.json")
        arms = [arm for mode in options.modes for form in options.forms for arm in arms_of(form, mode, home, options)]
        for wave in waves_of(arms, options.at_once):
            for arm in wave:
                engine = engine_flags((*FORMS[arm.form], *MODES[arm.mode], *flags))
                arm.start(engine, variables, options.timeout_s)
            with console.status(f"{len(wave)} engines start: {', '.join(arm.home.name for arm in wave)}"):
                while any(arm.is_waiting for arm in wave):
                    time.sleep(0.2)
                for arm in wave:
                    arm.finish()
        oracles = {(arm.form, arm.mode): arm for arm in arms if arm.name == "unpaged"}
        rows = [row_of(arm, oracles[arm.form, arm.mode]) for arm in arms]
    save(rows, machine, call, options.out)
    show(rows)
    if not all(is_right(row) for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
