"""Compare MV-WSA with fixed ways to divide a budget, and each with the best split in hindsight, workflow by workflow.

python benchmarks/table5/run.py --machine "2-core x86-64 VM"
"""

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from families import UNLIKE, makers
from judge import check, first_half, judge
from online import replanned
from workflows import Workflow

from wisp.allocator import STATED, make_plan
from wisp.allocator.kv_demand import traced_kv
from wisp.recording import Recording

HERE = Path(__file__).parent
ARMS = (
    "MV-WSA",
    "MV-WSA, replanned",
    "MV-WSA, hindsight",
    "half-and-half",
    "Flux-prop",
    "expert-first",
    "best single f",
)
CHECKED_LAYERS = 2


def choices(workflow: Workflow, seen: Recording) -> dict[str, int]:
    """The slots that each arm takes after it has seen this much; the baselines see no more than MV-WSA."""
    question = workflow.question
    plan = make_plan(question, seen.phase("auto"), traced_kv(seen, question.layout, question.workload))
    others = {name: row.candidate.expert_slots for name, row in plan.baselines.items()}
    return {"MV-WSA": plan.choice.candidate.expert_slots, **others}


def run(name: str) -> dict[str, Any]:
    """One workflow, in full."""
    started = time.process_time()
    workflow = dict(makers())[name]()
    budget = workflow.question.budget
    verdict = judge(workflow)
    seen = first_half(workflow.recording)
    taken = choices(workflow, seen)
    taken["MV-WSA, hindsight"] = choices(workflow, workflow.recording)["MV-WSA"]
    check(workflow, verdict, taken["MV-WSA"], CHECKED_LAYERS)
    oracle = int(np.argmin(verdict.lost))
    admissible = budget.admissible_slots()
    references = verdict.faults[0]
    row = {
        "name": name,
        "family": workflow.family,
        "parameters": workflow.parameters,
        "pageable_gib": round(budget.pageable_bytes / 2**30, 3),
        "context": workflow.context,
        "sequences": workflow.sequences,
        "chunk": workflow.chunk,
        "admissible_slots": [admissible[0], admissible[-1]],
        "all_slots_f": budget.slot_bytes / budget.pageable_bytes,
        "oracle": {
            "slots": oracle,
            "f": oracle * budget.slot_bytes / budget.pageable_bytes,
            "hit_ratio": 1 - verdict.faults[oracle] / references,
            "lost_blocks": int(verdict.lost_blocks[oracle]),
            "lost_s": verdict.lost[oracle],
            "whole_s": verdict.whole[oracle],
        },
        "lost_s_by_slots": [round(each, 4) for each in verdict.lost[admissible[0] : admissible[-1] + 1]],
        "arms": {},
    }
    for arm, slots in taken.items():
        row["arms"][arm] = _arm(slots, admissible, verdict.lost, verdict.whole)
    plans, lost = replanned(workflow)
    row["arms"]["MV-WSA, replanned"] = {"slots": plans, "serves": True, "over_oracle": lost / verdict.lost[oracle] - 1}
    row["processor_s"] = round(time.process_time() - started, 2)
    return row


def _arm(slots: int, admissible: range, lost: Any, whole: Any) -> dict[str, Any]:
    """An arm that cannot serve is moved to the nearest split that does."""
    nearest = min(max(slots, admissible[0]), admissible[-1])
    return {
        "slots": slots,
        "serves": slots == nearest,
        "over_oracle": lost[nearest] / lost.min() - 1,
        "whole_over_oracle": whole[nearest] / whole[int(np.argmin(lost))] - 1,
    }


def add_best_single(rows: list[dict[str, Any]]) -> float:
    """The one f for all workflows that is nearest to their oracles in the mean, moved to where it serves."""

    def over(row: dict[str, Any], f: float) -> tuple[int, float]:
        first, last = row["admissible_slots"]
        slots = min(max(int(f / row["all_slots_f"]), first), last)
        return slots, row["lost_s_by_slots"][slots - first] / row["oracle"]["lost_s"] - 1

    best = min(np.arange(1, 100) / 100, key=lambda f: np.mean([over(row, f)[1] for row in rows]))
    for row in rows:
        slots, distance = over(row, best)
        row["arms"]["best single f"] = {"slots": slots, "serves": True, "over_oracle": max(0.0, distance)}
    return float(best)


def summary(rows: list[dict[str, Any]], key: str = "over_oracle") -> dict[str, dict[str, float]]:
    """By arm: mean, median, 90th percentile and worst distance from the oracle, and how many could serve as chosen."""
    result = {}
    for arm in ARMS:
        own = [row["arms"][arm] for row in rows if key in row["arms"].get(arm, {})]
        if own:
            values = np.array([each[key] for each in own])
            result[arm] = {
                "mean": values.mean(),
                "median": np.median(values),
                "p90": np.quantile(values, 0.9),
                "worst": values.max(),
                "serves": sum(each["serves"] for each in own),
                "workflows": len(own),
            }
    return result


def main() -> None:
    """Run, print, write results.json and the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", required=True, help="for the results: what this ran on")
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    parser.add_argument("--only", default="", help="names of workflows that contain this")
    parser.add_argument("--figure", type=Path, help="where to draw, such as table5.svg")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    names = [name for name, _ in makers() if arguments.only in name]
    if not names:
        parser.error(f"no workflow's name contains {arguments.only!r}")
    for path in filter(None, (arguments.output, arguments.figure)):
        if not path.parent.is_dir():
            parser.error(f"there is no folder {path.parent} for {path.name}; make it first")
    started = time.monotonic()
    with ProcessPoolExecutor(arguments.processes) as pool:
        rows = list(pool.map(run, names))
    best = add_best_single(rows)
    families = list(dict.fromkeys(row["family"] for row in rows))
    alike = [row for row in rows if row["family"] not in UNLIKE]
    result = {
        "machine": arguments.machine,
        "command": "python benchmarks/table5/run.py",
        "seconds": round(time.monotonic() - started),
        "costs": asdict(STATED),
        "best_single_f": best,
        "oracle_f": [min(row["oracle"]["f"] for row in rows), max(row["oracle"]["f"] for row in rows)],
        "halves_alike": summary(alike),
        "all": summary(rows),
        "all_whole": summary(rows, "whole_over_oracle"),
        "families": {each: summary([row for row in rows if row["family"] == each]) for each in families},
        "rows": rows,
    }
    arguments.output.write_text(json.dumps(result, indent=1, default=float) + "\n")
    if arguments.figure is not None:
        from figure import draw

        draw(result, arguments.figure)
    shown = {"halves alike": "halves_alike", "all": "all", "all, whole seconds": "all_whole"}
    for title, table in {**{title: result[key] for title, key in shown.items()}, **result["families"]}.items():
        print(title)
        for arm, numbers in table.items():
            told = "  ".join(f"{key} {numbers[key]:7.1%}" for key in ("mean", "median", "p90", "worst"))
            print(f"  {arm:<18} {told}  serves {numbers['serves']}/{numbers['workflows']}")


if __name__ == "__main__":
    main()
