"""Run the stock engine and paged ones on one workload, and judge them bit by bit."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wisp.engines.vllm.engine_process import environment, last_words
from wisp.engines.vllm.verify.arm import ArmRequest, ArmResult
from wisp.engines.vllm.verify.workload import Workload
from wisp.errors import VerifyError


@dataclass(frozen=True)
class Verdict:
    """How one paged engine compares with the unpaged one."""

    requests: int
    same_tokens: int
    same_logprobs: int
    largest_difference: float
    same_schedule: bool
    cached_tokens: int

    @property
    def identical(self) -> bool:
        """All tokens and all log-probabilities bitwise equal, under the same schedule."""
        return self.same_schedule and self.same_tokens == self.same_logprobs == self.requests


def judge(unpaged: ArmResult, paged: ArmResult) -> Verdict:
    """Compare answers request by request."""
    pairs = list(zip(unpaged.answers, paged.answers, strict=True))
    differences = [
        abs(a[token] - b[token])
        for one, other in pairs
        for a, b in zip(one.logprobs, other.logprobs, strict=False)
        for token in a.keys() & b.keys()
    ]
    return Verdict(
        requests=len(pairs),
        same_tokens=sum(one.token_ids == other.token_ids for one, other in pairs),
        same_logprobs=sum(one.logprobs == other.logprobs for one, other in pairs),
        largest_difference=max(differences, default=0.0),
        same_schedule=unpaged.steps == paged.steps,
        cached_tokens=sum(answer.cached_tokens for answer in paged.answers),
    )


Runner = Callable[[Path, Path, Mapping[str, str], float | None], int | None]
"""Runs `arm` on a request, writes what it says to a log, and returns its exit code, or None if it was ended.

It is given the request, the log, what to add to the environment, and the seconds that the engine may take."""


def in_new_process(request: Path, log: Path, variables: Mapping[str, str], limit_seconds: float | None) -> int | None:
    """A `Runner` that starts Python anew."""
    command = [sys.executable, "-m", "wisp.engines.vllm.verify.arm", str(request)]
    with log.open("w") as output:
        try:
            return subprocess.run(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(**variables),
                check=False,
                timeout=limit_seconds,
            ).returncode
        except subprocess.TimeoutExpired:
            return None


def run_arm(
    model: str,
    settings: dict[str, Any] | None,
    workload: Workload,
    flags: Sequence[str] = (),
    *,
    layerwise: bool = False,
    variables: Mapping[str, str] | None = None,
    limit_seconds: float | None = None,
    runner: Runner = in_new_process,
) -> ArmResult:
    """Run one engine in a process of its own and return its report; `VerifyError` says why it did not finish.

    `variables` are added to the process's environment; one that is not done after `limit_seconds` is ended.
    """
    with tempfile.TemporaryDirectory(prefix="wisp-verify-") as folder:
        home = Path(folder)
        workload.save(home / "workload.json")
        request = ArmRequest(
            model, settings, str(home / "workload.json"), str(home / "result.json"), tuple(flags), layerwise
        )
        (home / "request.json").write_text(json.dumps(asdict(request)))
        log, result = home / "log", home / "result.json"
        code = runner(home / "request.json", log, variables or {}, limit_seconds)
        if not result.exists():
            late = f"by force, as it was not done after {limit_seconds} s,"
            ended = late if code is None else f"with code {code}"
            raise VerifyError(f"the engine ended {ended} before it had answered; its last words:\n{last_words(log)}")
        return ArmResult.load(result)
