"""Is the output of every kind of model unchanged? Small random checkpoints, paged and unpaged, bit by bit.

    python benchmarks/models/run.py [--only gpt_oss deepseek_v2] [--jobs 2] [--eager] [any flag of vLLM]

Each engine runs in a process of its own (`wisp.engines.vllm.verify`); rows go to results.json, by device and kind.
Exits with 1 if a paged engine differs, or if one that loads wrong experts on purpose does not.
"""

import argparse
import datetime
import json
import os
import platform
import random
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from wisp.engines.vllm.engine_process import engine_flags
from wisp.engines.vllm.verify.compare import judge, run_arm
from wisp.engines.vllm.verify.workload import WHEN_IDLE, Arrival, Workload
from wisp.errors import VerifyError
from wisp.pager.counters import hit_ratio

HERE = Path(__file__).parent
sys.path += [str(HERE.parents[1] / "tests"), str(HERE.parent / "shared")]

import models  # noqa: E402  # of tests/
from versions import versions  # noqa: E402

console = Console(highlight=False, width=140)


@dataclass(frozen=True)
class Case:
    """One kind of checkpoint."""

    kind: str
    features: str
    slots: int
    """Fewer than a step of several requests needs."""
    flags: tuple[str, ...] = ()


def _speculative(**more: object) -> tuple[str, ...]:
    return ("--speculative-config", json.dumps({"num_speculative_tokens": 2, **more}))


CASES: Mapping[str, Case] = {
    "qwen3_moe": Case("qwen3_moe", "-", 5),
    "qwen2_moe": Case("qwen2_moe", "gated shared expert", 5),
    "olmoe": Case("olmoe", "-", 5),
    "mixtral": Case("mixtral", "-", 3),
    "glm4_moe": Case("glm4_moe", "sigmoid scores with a bias, groups, shared expert, dense first layer", 5),
    "deepseek_v2": Case("deepseek_v2", "latent attention, groups, shared experts, dense first layer", 5),
    "deepseek_v3": Case("deepseek_v3", "latent attention, sigmoid scores with a bias, groups, shared expert", 5),
    "minimax_m2": Case("minimax_m2", "sigmoid scores with a bias", 5),
    "gpt_oss": Case("gpt_oss", "expert biases, a class of experts of its own", 3),
    "qwen3_next": Case("qwen3_next", "linear attention between, gated shared expert", 5),
    "granitemoehybrid": Case("granitemoehybrid", "Mamba 2 between, shared expert", 3),
    "ngram": Case("qwen3_moe", "guesses by n-grams", 5, _speculative(method="ngram", prompt_lookup_max=3)),
    "mtp": Case("mtp", "guesses by a draft layer with experts (GLM-4)", 5, _speculative(method="mtp")),
    "transformers": Case("qwen3_moe", "the Transformers backend", 5, ("--model-impl", "transformers")),
}


def make_checkpoint(kind: str, path: Path) -> None:
    """Of random weights, with a tokenizer."""
    if kind == "mtp":
        models.make_mtp_checkpoint(path)
    else:
        models.make_checkpoint(kind, path)
    models.add_tokenizer(path)


def make_workload() -> Workload:
    """Token ids, since nothing tokenizes for these: batched and late requests, several chunks, shared prefixes."""
    draw = random.Random(0)

    def words(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(5, 500) for _ in range(count))

    def arrival(step: int, prompt: Sequence[int]) -> Arrival:
        return Arrival(step=step, max_tokens=24, token_ids=tuple(prompt))

    prefix = words(300)
    together = [arrival(0, words(count)) for count in (3, 17, 64, 1, 9)]
    together.append(arrival(0, words(3) * 10))  # repeats itself
    late = [arrival(5 + 3 * place, prefix + words(5 + place)) for place in range(2)]
    sharing = [arrival(WHEN_IDLE, prefix + words(9)) for _ in range(2)]
    return Workload((*together, *late, *sharing))


def run_case(name: str, case: Case, folder: Path, workload: Workload, more: Sequence[str]) -> dict[str, Any]:
    """A row. An engine that does not start leaves its last words in place of a verdict."""
    start = time.monotonic()
    row: dict[str, Any] = {"name": name, "features": case.features, "expert_slots": case.slots}
    model = str(folder / name)
    flags = engine_flags(("--dtype", "bfloat16", "--max-model-len", "1024", *case.flags, *more))
    try:
        unpaged = run_arm(model, None, workload, flags)
    except VerifyError as error:
        return {**row, "unpaged_does_not_run": str(error)}
    try:
        paged = run_arm(model, {"expert_slots": case.slots}, workload, flags)
        broken = run_arm(model, {"expert_slots": case.slots, "break_expert": True}, workload, flags)
    except VerifyError as error:
        return {**row, "paged_does_not_run": str(error)}
    verdict, control = judge(unpaged, paged), judge(unpaged, broken)
    if not verdict.identical:  # whether it is paging, or a kernel that never gives the same twice
        row["unpaged_repeats_itself"] = judge(unpaged, run_arm(model, None, workload, flags)).identical
    assert paged.counters is not None, "run_arm has checked that it was paged"
    return {
        **row,
        "identical": verdict.identical,
        "requests": verdict.requests,
        "same_tokens": verdict.same_tokens,
        "same_logprobs": verdict.same_logprobs,
        "largest_difference": verdict.largest_difference,
        "steps": len(paged.steps),
        "cached_tokens": verdict.cached_tokens,
        "faults": int(paged.counters["faults"]),
        "hit_ratio": round(hit_ratio(paged.counters), 4),
        "broken_differs": not control.identical,
        "seconds": round(time.monotonic() - start, 1),
    }


def outcome(row: Mapping[str, Any]) -> str:
    """In a word or two, or the reason why there is none."""
    for key in ("unpaged_does_not_run", "paged_does_not_run"):
        if key in row:
            lines = [line for line in row[key].splitlines() if "Error" in line] or row[key].splitlines()
            return f"{key.replace('_', ' ')}: {lines[-1][:100]}"
    if row["identical"]:
        return "identical"
    repeats = "the unpaged engine repeats itself" if row["unpaged_repeats_itself"] else "so does the unpaged engine"
    return f"DIFFERENT by {row['largest_difference']:.3g}; {repeats}"


def fails(row: Mapping[str, Any]) -> bool:
    """A model that stock vLLM does not run here says nothing against paging."""
    return "unpaged_does_not_run" not in row and not (row.get("identical") and row.get("broken_differs"))


def machine() -> tuple[str, str]:
    """The kind of device, and its name."""
    import torch

    if torch.cuda.is_available():
        return "cuda", torch.cuda.get_device_name()
    return "cpu", f"{os.cpu_count()}-core {platform.machine()}"


def merge(path: Path, device: str, rows: Sequence[Mapping[str, Any]], call: Mapping[str, Any]) -> None:
    """Replace the rows of the same device, mode and name."""
    results = json.loads(path.read_text()) if path.exists() else {}
    for row in rows:
        results.setdefault(device, {})[row["name"]] = {**row, **call}
    path.write_text(json.dumps(results, indent=1) + "\n")


def main() -> int:
    """Run what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES), metavar="KIND")
    parser.add_argument("--jobs", type=int, default=1, help="kinds at a time; on a GPU they share its memory")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs and torch.compile")
    parser.add_argument("--results", type=Path, default=HERE / "results.json")
    options, more = parser.parse_known_args()
    device, name = machine()
    if options.eager:
        more.append("--enforce-eager")
    if device == "cuda":  # engines side by side would disturb each other's profile of the memory
        more += ["--kv-cache-memory-bytes", str(256 << 20), "--gpu-memory-utilization", "0.05"]
    call = {
        "mode": "eager" if options.eager else "compiled" if device == "cpu" else "CUDA graphs",
        "command": shlex.join(["python", "benchmarks/models/run.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": name,
        "versions": versions("transformers"),
    }
    rows = []
    with TemporaryDirectory(prefix="wisp-models-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        for chosen in options.only:
            make_checkpoint(CASES[chosen].kind, Path(folder) / chosen)
        workload = make_workload()
        started = [pool.submit(run_case, each, CASES[each], Path(folder), workload, more) for each in options.only]
        with console.status(f"{len(started)} kinds of models, three engines each"):
            for done in as_completed(started):
                rows.append(row := done.result())
                merge(options.results, device, [row], call)
                console.print(f"{row['name']}: {outcome(row)}", markup=False)
    table = Table("model", "what it has", "slots", "hits", "faults", "broken differs", "output", "s")
    for row in sorted(rows, key=lambda row: options.only.index(row["name"])):
        measured = [str(row.get(key, "-")) for key in ("hit_ratio", "faults", "broken_differs")]
        cells = [row["name"], row["features"], str(row["expert_slots"]), *measured]
        table.add_row(*cells, outcome(row), str(row.get("seconds", "-")))
    console.print(table)
    return int(any(fails(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
