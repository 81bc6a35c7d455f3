"""Pages small checkpoints in every format against the unpaged engine, and writes results.json and the table.

    python benchmarks/formats/run.py --machine "one H200" [--only gptq_marlin,ct_int4_triton:eager] [--at-once 16]

A row is two engines in processes of their own, unpaged and paged; a case has a row inside CUDA graphs and one without
them, whose paged engine also compares each layer with itself computed from all experts. Rows are written as they come.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import checkpoints
import forked
from cases import CASES, MODES, Case, asked_for, workload

from wisp.engines.vllm.engine_process import engine_flags
from wisp.engines.vllm.verify.arm import ArmResult
from wisp.engines.vllm.verify.compare import judge, run_arm
from wisp.pager.counters import hit_ratio

HERE = Path(__file__).parent
PLAIN = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
"""FlashInfer's sampler is compiled for minutes at first."""
Arm = Callable[..., Future[ArmResult]]
"""Starts an engine of one row when its turn comes."""


class Row:
    """One row: its engines stand in the queue once it is made."""

    def __init__(self, case: Case, mode: str, arm: Arm) -> None:
        slots, _ = MODES[mode]
        self.key = (case.checkpoint, case.backend, mode)
        self._known: dict[str, Any] = {
            "format": case.checkpoint,
            "backend": case.backend,
            "mode": mode,
            "expert_slots": slots,
        }
        self._arm = arm
        self._stock = arm(settings=None)
        self._paged = arm(settings={"expert_slots": slots, "unshown_formats": True}, layerwise=mode == "eager")

    def result(self) -> dict[str, Any] | None:
        """What was found once both engines have ended; None if one of them was not started."""
        try:
            return self._known | self._compared(self._stock.result(), self._paged.result())
        except CancelledError:
            return None
        except Exception as error:
            return self._known | {"verdict": "failed", "error": str(error)[-2000:] or traceback.format_exc()[-2000:]}

    def leave_out(self) -> None:
        """Start no engine of it any more."""
        self._stock.cancel()
        self._paged.cancel()

    def _compared(self, unpaged: ArmResult, paged: ArmResult) -> dict[str, Any]:
        verdict = judge(unpaged, paged)
        assert paged.counters is not None, "an engine that was not paged has raised"
        layers = [each for each in paged.layers if each.identical != each.calls]
        same = verdict.identical and not layers
        # what stock vLLM does not repeat itself says nothing of paging
        again = {} if same else {"stock_repeats_itself": judge(unpaged, self._arm(settings=None).result()).identical}
        return {
            "verdict": "identical" if same else "DIFFERENT",
            **again,
            "requests": verdict.requests,
            "same_tokens": verdict.same_tokens,
            "same_logprobs": verdict.same_logprobs,
            "same_schedule": verdict.same_schedule,
            "largest_difference": verdict.largest_difference,
            "steps": len(paged.steps),
            "layer_calls": sum(each.calls for each in paged.layers),
            "layer_calls_identical": sum(each.identical for each in paged.layers),
            "largest_layer_difference": max((each.largest_difference for each in paged.layers), default=0.0),
            "hits": round(hit_ratio(paged.counters), 3),
            "faults": int(paged.counters["faults"]),
        }


def rows_of(
    asked: list[tuple[Case, str]], pool: ThreadPoolExecutor, folder: Path, flags: tuple[str, ...], seconds: float
) -> Iterator[Row]:
    """The rows, in the order in which their engines start."""
    for case, mode in asked:
        model = folder / case.checkpoint
        if not model.exists():
            checkpoints.write(model, case.checkpoint)
        arm = partial(
            pool.submit,
            run_arm,
            str(model),
            workload=workload(),
            flags=engine_flags((*flags, *case.flags, *MODES[mode][1])),
            variables=PLAIN,
            limit_seconds=seconds,
            runner=forked.run,
        )
        yield Row(case, mode, arm)


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    lines = [
        "| format | backend | mode | slots | verdict | tokens | logprobs | largest difference | layer calls | hits |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        start = f"| {row['format']} | {row['backend']} | {row['mode']} | {row['expert_slots']} | {row['verdict']} |"
        if "error" in row:
            lines.append(f"{start} {row['error'].strip().splitlines()[-1][:120]} | | | | |")
            continue
        calls = f"{row['layer_calls_identical']}/{row['layer_calls']}" if row["layer_calls"] else ""
        lines.append(
            f"{start} {row['same_tokens']}/{row['requests']} | {row['same_logprobs']}/{row['requests']} | "
            f"{max(row['largest_difference'], row['largest_layer_difference']):.3g} | {calls} | {row['hits']:.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the rows side by side and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", required=True, help="what this runs on, for the record")
    parser.add_argument("--only", help="names of cases, separated by commas, with :graphs or :eager for one row alone")
    parser.add_argument("--at-once", type=int, default=14, help="engines side by side")
    parser.add_argument("--seconds", type=float, default=150, help="that an engine may take")
    parser.add_argument("--start-within", type=float, help="seconds after which no engine starts; its row is left out")
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    parser.add_argument("--kv-bytes", default="268435456", help="of device memory for KV, in each engine")
    arguments = parser.parse_args()
    try:
        asked = asked_for(arguments.only)
    except ValueError as error:
        parser.error(str(error))
    flags = ("--kv-cache-memory-bytes", arguments.kv_bytes, "--gpu-memory-utilization", "0.05")
    start = time.perf_counter()
    record = json.loads(arguments.output.read_text()) if arguments.output.exists() else {"runs": [], "rows": []}
    run: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/formats/run.py", *sys.argv[1:]]),
        "machine": arguments.machine,
        "versions": versions(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    forked.prepare()
    found: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="wisp-formats-") as folder,
        ThreadPoolExecutor(arguments.at_once) as pool,
    ):
        rows = list(rows_of(asked, pool, Path(folder), flags, arguments.seconds))
        if arguments.start_within is not None:
            timer = threading.Timer(arguments.start_within, lambda: [row.leave_out() for row in rows])
            timer.daemon = True
            timer.start()
        for row in rows:
            result = row.result()
            if result is None:
                print(f"left out: {' '.join(row.key)}", flush=True)
                continue
            found.append(result)
            run["seconds"] = round(time.perf_counter() - start)
            print(json.dumps(result), flush=True)
            arguments.output.write_text(json.dumps(merged(record, run, found), indent=2) + "\n")
    print(table(merged(record, run, found)["rows"]))


def merged(record: dict[str, Any], run: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The record with this run's rows in place of older ones of the same key; a row names its run by number."""

    def key(row: dict[str, Any]) -> tuple[str, str, str]:
        return row["format"], row["backend"], row["mode"]

    runs = [*record["runs"], run]
    fresh = {key(row) for row in rows}
    kept = [row for row in record["rows"] if key(row) not in fresh]
    order = [(case.checkpoint, case.backend, mode) for case in CASES for mode in MODES]
    both = [*kept, *({**row, "run": len(runs) - 1} for row in rows)]
    return {"runs": runs, "rows": sorted(both, key=lambda row: order.index(key(row)))}


def versions() -> dict[str, str]:
    """Of what was measured."""
    import torch
    import vllm

    import wisp

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=HERE
    )
    return {
        "wisp": wisp.__version__,
        "commit": commit.stdout.strip(),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
