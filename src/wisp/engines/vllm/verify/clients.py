"""A paged server under concurrent clients, against the unpaged engine replaying the very schedule that came about."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from wisp.engines.vllm.engine_process import environment, last_words
from wisp.engines.vllm.settings import WispSettings
from wisp.engines.vllm.verify.arm import Answer, ArmResult
from wisp.engines.vllm.verify.compare import Verdict, judge, run_arm
from wisp.engines.vllm.verify.record import RECORDING_SCHEDULER, SCHEDULE_FILE_VARIABLE, arrivals_of, steps_of
from wisp.engines.vllm.verify.workload import PREFIX, TEXTS
from wisp.errors import VerifyError

LOGPROBS = 10
START_SECONDS = 600
THREADS = {"OMP_NUM_THREADS": "1"}
"""vLLM's CPU server leaves a core to its front end, an engine in one process does not; and how a CPU kernel divides
its sums among threads shows in the bits."""
SERVER_FLAGS = ("--no-async-scheduling", "--scheduler-cls", RECORDING_SCHEDULER)
"""Without asynchronous scheduling a step is scheduled after the one before has been answered, so that what arrives
before which step decides everything."""


@dataclass(frozen=True)
class _Server:
    url: str
    process: subprocess.Popen[bytes]
    log: Path


async def _converse(url: str, model: str, client: int, turns: int, max_tokens: int) -> list[tuple[str, Answer]]:
    """One conversation; returns (response id, answer) for each turn."""
    from openai import AsyncOpenAI

    answers = []
    messages: list[Any] = []
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0, timeout=START_SECONDS) as api:
        for turn in range(turns):
            text = TEXTS[(client + turn) % len(TEXTS)]
            messages.append({"role": "user", "content": PREFIX * (client % 3) + text})
            response = await api.chat.completions.create(
                model=model,
                messages=messages,
                temperature=0.0,
                max_tokens=max_tokens,
                logprobs=True,
                top_logprobs=LOGPROBS,
                extra_body={"return_token_ids": True, "return_tokens_as_token_ids": True},
            )
            (choice,) = response.choices
            messages.append({"role": "assistant", "content": choice.message.content or ""})
            answers.append((response.id, _answer(choice)))
    return answers


def _answer(choice: Any) -> Answer:
    entries = choice.logprobs.content or []
    best = [
        {entry.token.removeprefix("token_id:"): entry.logprob for entry in [*position.top_logprobs, position]}
        for position in entries
    ]
    return Answer(token_ids=list(choice.token_ids), logprobs=best, cached_tokens=0)


def compare_under_clients(
    model: str, settings: WispSettings, clients: int, flags: Sequence[str] = (), *, turns: int = 2, max_tokens: int = 48
) -> tuple[Verdict, int]:
    """Serve `clients` concurrent conversations paged, replay their schedule unpaged; (verdict, steps)."""
    with tempfile.TemporaryDirectory(prefix="wisp-verify-") as folder:
        record = Path(folder) / "schedule"
        with _serving(model, settings, flags, record, Path(folder) / "log") as server:

            async def everyone() -> list[list[tuple[str, Answer]]]:
                talks = [_converse(server.url, model, client, turns, max_tokens) for client in range(clients)]
                return await asyncio.gather(*talks)

            answered = dict(pair for talk in asyncio.run(everyone()) for pair in talk)
        request_ids, workload = arrivals_of(record, logprobs=LOGPROBS)
        paged = ArmResult([_of(answered, name) for name in request_ids], steps_of(record), None, 0.0)
    unpaged = run_arm(model, None, workload, flags, variables=THREADS)
    return judge(_as_served(unpaged, paged), paged), len(paged.steps)


def _as_served(unpaged: ArmResult, paged: ArmResult) -> ArmResult:
    """The unpaged answers with the log-probabilities that the API shows: of its ten, the chosen token is one."""
    answers = []
    for one, other in zip(unpaged.answers, paged.answers, strict=True):
        shown = [
            {token: a[token] for token in a if token in b or len(b) < LOGPROBS}
            for a, b in zip(one.logprobs, other.logprobs, strict=False)
        ]
        answers.append(Answer(one.token_ids, shown, one.cached_tokens))
    return ArmResult(answers, unpaged.steps, unpaged.counters, unpaged.seconds)


def _of(answered: dict[str, Answer], request_id: str) -> Answer:
    """vLLM appends to the id that the client sees."""
    for response_id, answer in answered.items():
        if request_id.startswith(response_id):
            return answer
    raise VerifyError(f"the server computed request {request_id}, which no client asked for; is someone else using it?")


def serve_arguments(model: str, settings: WispSettings) -> list[str]:
    """What `wisp serve` is to be told of these settings."""
    arguments = [model, "--expert-slots", str(settings.expert_slots), "--policy", settings.policy]
    arguments += ["--decide", settings.decide, "--backing-store", settings.backing_store]
    if settings.unshown_formats:  # which has no option of its own
        arguments += ["--additional-config", json.dumps({"wisp": {"unshown_formats": True}})]
    return arguments


@contextmanager
def _serving(model: str, settings: WispSettings, flags: Sequence[str], record: Path, log: Path) -> Iterator[_Server]:
    """`wisp serve` on a free port, until the block ends."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "wisp.cli.main", "serve", *serve_arguments(model, settings)]
    command += ["--host", "127.0.0.1", "--port", str(port), *SERVER_FLAGS, *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(**THREADS, **{SCHEDULE_FILE_VARIABLE: str(record)}),
        )
    server = _Server(f"http://127.0.0.1:{port}", process, log)
    try:
        _wait_until_ready(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(server: _Server) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            if httpx.get(f"{server.url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise VerifyError(f"the paged server did not start; its last words:\n{last_words(server.log)}")
