"""A server of a soak: started, asked for its numbers and for a sample of answers, and ended."""

import os
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ("README.md", "docs/architecture.md", "src/wisp/resident.py", "demo/README.md", "src/wisp/pager/pager.py")
"""Of the repository: what the prompts are cut from."""
CLIENTS = 8
CHUNK_TOKENS, MODEL_TOKENS = 256, 1024
FLAGS = (
    *("--served-model-name", "soak", "--max-model-len", str(MODEL_TOKENS), "--max-num-seqs", str(CLIENTS)),
    *("--max-num-batched-tokens", str(CHUNK_TOKENS), "--block-size", "32", "--num-gpu-blocks-override", "49"),
)
"""KV blocks for 1568 tokens, which eight requests outgrow: some are preempted."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # how a CPU kernel divides its sums among threads shows in the bits
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # for /collective_rpc and /reset_prefix_cache
}
START_SECONDS, STOP_SECONDS, ANSWER_SECONDS, IDLE_SECONDS = 600, 60, 300, 60
SAMPLE_PROMPTS, SAMPLE_TOKENS, TOP_LOGPROBS = (12, 200, 700), 48, 5

console = Console(highlight=False)


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]


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
