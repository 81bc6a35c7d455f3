"""Keep a paged server busy with clients that come, go and vanish, then look whether it is still right.

    python benchmarks/soak/run.py [--minutes 10 | --seconds 600] [--slots 8] [any flag of `vllm serve`]

Two servers run one after the other, with the same flags: `wisp serve` under load, and stock vLLM for a comparison.
Writes results.json beside itself and exits with 1 if a check fails; the checks are in `checks`.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import shlex
import socket
import struct
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from statistics import linear_regression, median
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psutil
from openai import AsyncOpenAI
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.status import Status

from wisp.cli.served_counters import scrape

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ("README.md", "docs/architecture.md", "src/wisp/resident.py", "demo/README.md", "src/wisp/pager/pager.py")
"""Of the repository: what the prompts are cut from."""

CLIENTS = 8
CHUNK_TOKENS, MAX_TOKENS, MODEL_TOKENS = 256, 160, 1024
PROMPT_TOKENS = ((3, 40), (40, 250), (256, 800))
"""Ranges: a few words, one chunk of prefill, two to four chunks."""
KINDS = {"whole": 35, "streamed": 35, "closed": 12, "given up": 8, "disconnected": 10}
"""Weights of what a client does: wait for the answer; stream it; close the stream after some tokens; give up waiting;
break its TCP connection in the middle of an answer."""
FLAGS = (
    *("--served-model-name", "soak", "--max-model-len", str(MODEL_TOKENS), "--max-num-seqs", str(CLIENTS)),
    *("--max-num-batched-tokens", str(CHUNK_TOKENS), "--block-size", "32", "--num-gpu-blocks-override", "49"),
)
"""KV blocks for 1568 tokens, which eight requests outgrow: some are preempted."""
EXTENSION = "wisp.engines.vllm.device_memory.DeviceMemoryExtension"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # how a CPU kernel divides its sums among threads shows in the bits
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # for /collective_rpc and /reset_prefix_cache
}
START_SECONDS, STOP_SECONDS, ANSWER_SECONDS, IDLE_SECONDS = 600, 60, 300, 60
MEMORY_SECONDS, INTEGRITY_SECONDS = 5, 30
MOST_GROWTH_MIB_PER_MINUTE = 1.0
SAMPLE_PROMPTS, SAMPLE_TOKENS, TOP_LOGPROBS = (12, 200, 700), 48, 5

console = Console(highlight=False)


@dataclass
class Tally:
    """What happened so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    answer_tokens: int = 0
    errors: list[str] = field(default_factory=list)
    not_sensible: list[str] = field(default_factory=list)
    memory: list[tuple[float, float, float]] = field(default_factory=list)
    """Seconds since the load began, MiB of the front end, MiB of the engine's processes."""
    device_memory: list[tuple[float, float, float]] = field(default_factory=list)
    """Seconds since the load began, MiB that the workers' allocators have given out, MiB that they hold of the GPU."""
    decided_on: set[str | None] = field(default_factory=set)
    integrity: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]


class Clients:
    """Eight clients of one server, each with one request in flight."""

    def __init__(self, server: Server, text: list[int], tally: Tally, seed: int) -> None:
        self._server, self._text, self._tally = server, text, tally
        self._draw = random.Random(seed)
        self._api = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0, timeout=ANSWER_SECONDS)
        self._kinds: dict[str, Callable[[dict[str, Any]], Awaitable[None]]] = {
            "whole": self._whole,
            "streamed": self._streamed,
            "closed": self._closed,
            "given up": self._given_up,
            "disconnected": self._disconnected,
        }

    async def run(self, seconds: float) -> None:
        """Ask until the time is over, then let the last answers finish."""
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._client(end) for _ in range(CLIENTS)))
        await self._api.close()

    async def _client(self, end: float) -> None:
        while time.monotonic() < end and self._server.process.poll() is None:
            (kind,) = self._draw.choices(list(KINDS), weights=list(KINDS.values()))
            try:
                await self._kinds[kind](self._request())
            except Exception as error:
                self._tally.errors.append(f"{kind}: {type(error).__name__}: {error}")
                await asyncio.sleep(1)

    def _request(self) -> dict[str, Any]:
        """Half of the prompts begin at a paragraph of four, so that prefixes are shared; half anywhere."""
        length = self._draw.randint(*self._draw.choice(PROMPT_TOKENS))
        last = len(self._text) - length
        start = self._draw.choice([self._draw.randrange(4) * 100, self._draw.randrange(last)])
        self._tally.prompt_tokens += length
        return {
            "model": "soak",
            "prompt": self._text[start : start + length],
            "max_tokens": self._draw.randint(1, MAX_TOKENS),
            "temperature": self._draw.choice([0.0, 0.8]),
            "logprobs": 1,
        }

    async def _whole(self, request: dict[str, Any]) -> None:
        answer = await self._api.completions.create(**request)
        (choice,) = answer.choices
        self._judge("whole", request, choice.text, choice.finish_reason, choice.logprobs)

    async def _streamed(self, request: dict[str, Any]) -> None:
        text, reason = "", None
        logprobs: list[float | None] = []
        async for chunk in await self._api.completions.create(**request, stream=True):
            for choice in chunk.choices:
                text += choice.text
                reason = choice.finish_reason or reason
                logprobs += choice.logprobs.token_logprobs if choice.logprobs else []
        self._judge("streamed", request, text, reason, logprobs)

    async def _closed(self, request: dict[str, Any]) -> None:
        left = self._draw.randint(0, 12)
        async with await self._api.completions.create(**request, stream=True) as stream:
            async for _ in stream:
                left -= 1
                if left < 0:
                    break
        self._tally.outcomes["closed"] += 1

    async def _given_up(self, request: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._draw.uniform(0.02, 3)):
                await self._api.completions.create(**request)
        except TimeoutError:
            self._tally.outcomes["given up"] += 1
        else:
            self._tally.outcomes["answered before it was given up"] += 1

    async def _disconnected(self, request: dict[str, Any]) -> None:
        """Reset a connection while the answer comes."""
        url = httpx.URL(self._server.url)
        body = json.dumps({**request, "stream": True, "max_tokens": MAX_TOKENS, "ignore_eos": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            heard = b""
            while heard.count(b"data:") < 3:
                piece = await reader.read(256)
                if not piece:
                    raise ConnectionError(f"the answer ended too early to break off: {heard[-200:]!r}")
                heard += piece
        reset = struct.pack("ii", 1, 0)  # in place of an orderly end
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()
        self._tally.outcomes["disconnected"] += 1

    def _judge(self, kind: str, request: dict[str, Any], text: str, reason: str | None, logprobs: Any) -> None:
        """A sensible answer ends for a reason, is as long as that says, and has text and finite probabilities."""
        numbers = [number for number in getattr(logprobs, "token_logprobs", logprobs) if number is not None]
        self._tally.outcomes[kind] += 1
        self._tally.answer_tokens += len(numbers)
        most = request["max_tokens"]
        long_enough = len(numbers) == most if reason == "length" else reason == "stop" and 1 <= len(numbers) <= most
        worded = bool(text) or len(numbers) < 8  # fewer may be one unfinished character
        if not (long_enough and worded and all(isfinite(number) and number <= 0 for number in numbers)):
            self._tally.not_sensible.append(f"{kind}: {reason}, {len(numbers)} of {most} tokens, {text[:80]!r}")


async def soak(server: Server, text: list[int], minutes: float, seed: int, *, paged: bool) -> Tally:
    """Load the server, look at its memory and its slots meanwhile, and show how it goes."""
    tally, seconds = Tally(), minutes * 60
    start = time.monotonic()
    with console.status("") as status:
        watchers = [
            asyncio.create_task(every(MEMORY_SECONDS, watch_memory, server, tally, start)),
            asyncio.create_task(every(1 if console.is_terminal else 30, show, tally, status, start, seconds)),
        ]
        if paged:
            watchers.append(asyncio.create_task(every(INTEGRITY_SECONDS, watch_integrity, server, tally)))
            watchers.append(asyncio.create_task(every(MEMORY_SECONDS, watch_device_memory, server, tally, start)))
        clients = asyncio.create_task(Clients(server, text, tally, seed).run(seconds))
        ended, _ = await asyncio.wait([clients, *watchers], return_when=asyncio.FIRST_COMPLETED)
        for task in (clients, *watchers):
            task.cancel()
        await asyncio.gather(clients, *watchers, return_exceptions=True)
    if clients not in ended:  # what is not watched need not go on
        (watcher, *_) = ended
        raise RuntimeError(f"not watched from {time.monotonic() - start:.0f} s on") from watcher.exception()
    clients.result()
    if server.process.poll() is not None:
        sys.exit("the server ended under load")
    return tally


async def every(seconds: float, action: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """Repeat an action until cancelled."""
    while True:
        await asyncio.gather(action(*arguments), asyncio.sleep(seconds))


async def watch_memory(server: Server, tally: Tally, start: float) -> None:
    """Resident memory of the server's process, which is the front end, and of those below it."""
    front_end = psutil.Process(server.process.pid)
    below = front_end.children(recursive=True)
    try:
        sizes = [process.memory_info().rss / 2**20 for process in (front_end, *below)]
    except psutil.NoSuchProcess:  # a helper of the server's that has just ended
        return
    tally.memory.append((round(time.monotonic() - start, 1), round(sizes[0], 2), round(sum(sizes[1:]), 2)))


async def watch_device_memory(server: Server, tally: Tally, start: float) -> None:
    """Of all workers together, between two of their steps."""
    workers = await ask_workers(server, "wisp_device_memory")
    held = [sum(worker[key] for worker in workers) / 2**20 for key in ("allocated_bytes", "reserved_bytes")]
    tally.device_memory.append((round(time.monotonic() - start, 1), round(held[0], 2), round(held[1], 2)))
    tally.decided_on |= {worker["decided_on"] for worker in workers}


async def watch_integrity(server: Server, tally: Tally) -> None:
    """Every worker's check, between two of its steps."""
    tally.integrity += await ask_workers(server, "wisp_check_integrity")


async def ask_workers(server: Server, method: str) -> list[dict[str, Any]]:
    """What a method of the worker extension returns, worker by worker."""
    async with httpx.AsyncClient(timeout=ANSWER_SECONDS) as client:
        response = await client.post(f"{server.url}/collective_rpc", json={"method": method})
    response.raise_for_status()
    results: list[dict[str, Any]] = response.json()["results"]
    return results


async def show(tally: Tally, status: Status, start: float, seconds: float) -> None:
    """A line that changes; without a terminal, one a call."""
    now = time.monotonic() - start
    line = (
        f"{now:4.0f} of {seconds:.0f} s: {tally.outcomes.total()} requests, {tally.answer_tokens} tokens, "
        f"{sum(tally.memory[-1][1:]) if tally.memory else 0:.0f} MiB, {len(tally.errors)} errors, "
        f"{sum(check['wrong'] for check in tally.integrity)} wrong slots"
    )
    status.update(line)
    if not console.is_terminal:
        console.print(f"   {line}")


def metrics(server: Server) -> dict[str, float]:
    """vLLM's numbers by name, summed over engines and labels."""
    totals: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(httpx.get(f"{server.url}/metrics", timeout=60).text):
        for sample in family.samples:
            totals[sample.name] += sample.value
    return dict(totals)


def idle(server: Server) -> dict[str, float]:
    """What the server says of itself once nothing runs, or after a minute."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    deadline = time.monotonic() + IDLE_SECONDS
    while True:
        now = metrics(server)
        left = {name.removeprefix("vllm:"): now[name] for name in names}
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        time.sleep(1)


def memory_figures(samples: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    """A line through what follows the first third."""
    later = samples[len(samples) // 3 :]
    minutes = [seconds / 60 for seconds, *_ in later]
    figures: dict[str, Any] = {"median_mib": round(median(a + b for _, a, b in later), 1)}
    for name, values in {
        "whole": [a + b for _, a, b in later],
        "front_end": [a for _, a, _ in later],
        "engine": [b for *_, b in later],
    }.items():
        figures[f"{name}_growth_mib_per_minute"] = round(linear_regression(minutes, values).slope, 3)
    figures["samples_s_front_end_mib_engine_mib"] = [list(sample) for sample in samples[::6]]
    return figures


def device_memory_figures(samples: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    """A line through what follows the first third; zeros without a GPU."""
    later = samples[len(samples) // 3 :]
    minutes = [seconds / 60 for seconds, *_ in later]
    return {
        "median_held_mib": round(median(held for *_, held in later), 1),
        "allocated_growth_mib_per_minute": round(linear_regression(minutes, [a for _, a, _ in later]).slope, 3),
        "held_growth_mib_per_minute": round(linear_regression(minutes, [held for *_, held in later]).slope, 3),
        "samples_s_allocated_mib_held_mib": [list(sample) for sample in samples[::6]],
    }


def sample(server: Server, text: list[int]) -> list[dict[str, Any]]:
    """Some answers, one at a time, with every bit that the server sends of their probabilities."""
    answers = []
    for length in SAMPLE_PROMPTS:
        request = {
            "model": "soak",
            "prompt": text[:length],
            "max_tokens": SAMPLE_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": TOP_LOGPROBS,
            "return_tokens_as_token_ids": True,
        }
        response = httpx.post(f"{server.url}/v1/completions", json=request, timeout=ANSWER_SECONDS)
        response.raise_for_status()
        (choice,) = response.json()["choices"]
        answers.append({"text": choice["text"], **choice["logprobs"]})
    return answers


def checks(result: dict[str, Any]) -> dict[str, bool]:
    """What has to hold."""
    requests, integrity, sampled = result["requests"], result["integrity"], result["sample"]
    growth, bound = result["memory"]["whole_growth_mib_per_minute"], MOST_GROWTH_MIB_PER_MINUTE
    held = result["device_memory"]["held_growth_mib_per_minute"]
    asked = result["decided_on_asked"]
    return {
        "every kind of client was there, and requests were preempted": result["preemptions"] > 0
        and all(requests[kind] > 0 for kind in KINDS),
        "no request failed": not result["errors"],
        "every finished request had a sensible answer": not result["not_sensible"],
        "nothing is left running, waiting or holding KV blocks": not any(result["left_when_idle"].values()),
        f"memory grows by less than {bound:g} MiB a minute after the first third": growth < bound,
        f"GPU memory grows by less than {bound:g} MiB a minute after the first third": held < bound,
        f"paging was decided on the {asked or 'device or the host'}": len(result["decided_on"]) == 1
        and asked in (None, *result["decided_on"]),
        "every slot holds its expert, under load and at the end": integrity["wrong"] == 0
        and integrity["residents_at_the_end"] > 0,
        "the sample is identical to the unpaged server's": sampled["identical"] == sampled["answers"] > 0,
    }


@contextmanager
def serving(command: Sequence[str], flags: Sequence[str], **environment: str) -> Iterator[Server]:
    """Run a server on a free port until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with TemporaryDirectory(prefix="wisp-soak-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *command, "--host", "127.0.0.1", "--port", str(port), *FLAGS, *flags],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT, **environment},
            )
        server = Server(f"http://127.0.0.1:{port}", process)
        try:
            with console.status(f"starting {command[0]}"):
                wait_until_ready(server)
            yield server
        except (Exception, SystemExit):
            console.print(log.read_text(errors="replace")[-4000:], markup=False)
            raise
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_ready(server: Server) -> None:
    """Return once the server answers; leave if it does not."""
    start = time.monotonic()
    while server.process.poll() is None and time.monotonic() < start + START_SECONDS:
        try:
            if httpx.get(f"{server.url}/health", timeout=5).status_code == 200:
                console.print(f"   ready after {time.monotonic() - start:.0f} s")
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    sys.exit("the server did not start; its last words are above")


def tokens_of(server: Server) -> list[int]:
    """What prompts are cut from, in the model's own tokens."""
    text = "\n\n".join((ROOT / name).read_text() for name in TEXTS)
    response = httpx.post(f"{server.url}/tokenize", json={"model": "soak", "prompt": text}, timeout=60)
    response.raise_for_status()
    tokens: list[int] = response.json()["tokens"]
    return tokens


def versions() -> dict[str, str]:
    """Of what the results depend on."""
    found = {"python": platform.python_version()}
    for name in ("wisp-moe", "vllm", "vllm-cpu", "torch", "openai"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


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
        "versions": versions(),
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
