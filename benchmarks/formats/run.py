"""Pages small checkpoints in every format against the unpaged engine, and writes results.json and the table.

    python benchmarks/formats/run.py --machine "one H200" [--only gptq_marlin,fp8_block] [--at-once 8]

Each case is four engines in processes of their own: unpaged and paged, both inside CUDA graphs and without them. The
last one also compares each layer with itself computed from all experts.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import checkpoints

from wisp.engines.vllm.verify.arm import ArmResult
from wisp.engines.vllm.verify.compare import engine_flags, judge, run_arm
from wisp.engines.vllm.verify.workload import WHEN_IDLE, Arrival, Workload
from wisp.pager.counters import hit_ratio

HERE = Path(__file__).parent
GRAPH_SLOTS, EAGER_SLOTS = 6, 3
"""Of 16 experts, top-4, up to eight requests at once: a step needs more, and at 3 slots one token does."""
PLAIN = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
"""FlashInfer's sampler is compiled for minutes at first."""
GRAPHS = json.dumps({"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8]})


@dataclass(frozen=True)
class Case:
    """A checkpoint, and the kernel that is to compute it."""

    checkpoint: str
    backend: str

    @property
    def name(self) -> str:
        """Both in one word."""
        return f"{self.checkpoint}_{self.backend}"


CASES = [
    Case("bf16", "triton"),
    Case("fp8_block", "triton"),
    Case("fp8_block", "marlin"),
    Case("fp8_tensor", "triton"),
    Case("fp8_static", "triton"),
    Case("ct_fp8_static", "triton"),
    Case("ct_fp8_channel", "triton"),
    Case("gptq", "marlin"),
    Case("awq", "marlin"),
    Case("ct_int4", "marlin"),
    Case("ct_int4", "triton"),
    Case("ct_int4_zeros", "marlin"),
    Case("gpt_oss_mxfp4", "marlin"),
    Case("gpt_oss_bf16", "triton"),
    Case("mxfp4", "marlin"),
    Case("ct_nvfp4", "marlin"),
]


def workload(*, max_tokens: int = 16) -> Workload:
    """Batched and late requests, chunked prefill, a prefix that is shared: of token ids, for want of a tokenizer."""

    def prompt(start: int, length: int) -> tuple[int, ...]:
        return tuple(
            (start * 31 + 7 * place * (place + start)) % (checkpoints.VOCABULARY - 3) + 3 for place in range(length)
        )

    together = [Arrival(0, max_tokens, token_ids=prompt(start, 3 + 5 * start)) for start in range(6)]
    late = [Arrival(4 + 3 * i, max_tokens, token_ids=prompt(90, 200 + 100 * i)) for i in range(2)]
    sharing = [Arrival(WHEN_IDLE, max_tokens, token_ids=prompt(90, 300) + prompt(i, 9)) for i in range(2)]
    return Workload((*together, *late, *sharing))


def compare(case: Case, folder: Path, flags: tuple[str, ...], seconds: float) -> list[dict[str, Any]]:
    """The rows of one case: inside CUDA graphs, and without them."""
    model = str(checkpoints.write(folder / case.name, case.checkpoint))
    common = engine_flags((*flags, "--skip-tokenizer-init", "--moe-backend", case.backend, "--max-model-len", "1024"))
    asked = workload()
    rows = []
    for mode, slots, more in (
        ("graphs", GRAPH_SLOTS, ("--compilation-config", GRAPHS)),
        ("eager", EAGER_SLOTS, ("--enforce-eager",)),
    ):
        row: dict[str, Any] = {"format": case.checkpoint, "backend": case.backend, "mode": mode, "expert_slots": slots}
        try:
            arm = partial(
                run_arm, model, workload=asked, flags=(*common, *more), variables=PLAIN, limit_seconds=seconds
            )
            row |= _compare(arm, slots, layerwise=mode == "eager")
        except Exception as error:
            row |= {"verdict": "failed", "error": str(error)[-2000:] or traceback.format_exc()[-2000:]}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def _compare(arm: Callable[..., ArmResult], slots: int, *, layerwise: bool) -> dict[str, Any]:
    settings = {"expert_slots": slots, "unshown_formats": True}
    start = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        stock = pool.submit(arm, settings=None)
        paged = arm(settings=settings, layerwise=layerwise)
    unpaged = stock.result()
    verdict = judge(unpaged, paged)
    assert paged.counters is not None, "an engine that was not paged has raised"
    layers = [each for each in paged.layers if each.identical != each.calls]
    same = verdict.identical and not layers
    # what stock vLLM does not repeat itself says nothing of paging
    again = {} if same else {"stock_repeats_itself": judge(unpaged, arm(settings=None)).identical}
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
        "seconds": round(time.perf_counter() - start, 1),
    }


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
    """Run the cases side by side and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", required=True, help="what this runs on, for the record")
    parser.add_argument("--only", help="names of cases, separated by commas: " + ", ".join(each.name for each in CASES))
    parser.add_argument("--at-once", type=int, default=6, help="cases side by side, of two engines each")
    parser.add_argument("--seconds", type=float, default=240, help="that an engine may take")
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    parser.add_argument("--kv-bytes", default="268435456", help="of device memory for KV, in each engine")
    arguments = parser.parse_args()
    asked = arguments.only.split(",") if arguments.only else [each.name for each in CASES]
    unknown = set(asked) - {each.name for each in CASES}
    if unknown:
        parser.error(f"unknown cases {', '.join(sorted(unknown))}")
    flags = ("--kv-cache-memory-bytes", arguments.kv_bytes, "--gpu-memory-utilization", "0.05")
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="wisp-formats-") as folder, ThreadPoolExecutor(arguments.at_once) as pool:
        cases = [each for each in CASES if each.name in asked]
        rows = [
            row
            for rows in pool.map(lambda each: compare(each, Path(folder), flags, arguments.seconds), cases)
            for row in rows
        ]
    run = {
        "command": shlex.join(["python", "benchmarks/formats/run.py", *sys.argv[1:]]),
        "machine": arguments.machine,
        "versions": versions(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "seconds": round(time.perf_counter() - start),
    }
    record = json.loads(arguments.output.read_text()) if arguments.output.exists() else {"runs": [], "rows": []}
    record = merged(record, run, rows)
    arguments.output.write_text(json.dumps(record, indent=2) + "\n")
    print(table(record["rows"]))


def merged(record: dict[str, Any], run: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The record with this run's rows in place of older ones of the same cases; a row names its run by number."""
    runs = [*record["runs"], run]
    fresh = {(row["format"], row["backend"]) for row in rows}
    kept = [row for row in record["rows"] if (row["format"], row["backend"]) not in fresh]
    order = [(case.checkpoint, case.backend) for case in CASES]
    both = [*kept, *({**row, "run": len(runs) - 1} for row in rows)]
    return {"runs": runs, "rows": sorted(both, key=lambda row: order.index((row["format"], row["backend"])))}


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
