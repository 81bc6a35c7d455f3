"""One engine of a comparison: answer the workload, then decode against the clock once it is this engine's turn.

    python arm.py [--untimed] REQUEST.json

The request is an `ArmRequest` of `wisp verify`. `ready` appears beside its result file when the workload is answered;
the timed part waits for `go` there, so that engines that start side by side do not decode side by side. `--untimed` is
for ranks that share a GPU: they take turns on it, and their time says nothing.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from wisp.engines.vllm.local_engine import counters_of, start
from wisp.engines.vllm.verify.arm import ArmRequest, ArmResult, engine_args_of, replay
from wisp.engines.vllm.verify.record import SCHEDULE_FILE_VARIABLE, steps_of
from wisp.engines.vllm.verify.workload import Workload

BATCHES = (1, 8)
WARM_UP_TOKENS, TIMED_TOKENS = 16, 129
PROMPT_TOKENS = 16
GO_SECONDS = 300


def main(request_file: str, *, timed: bool) -> None:
    """Both parts; the result file has what `ArmResult` has, `start_s` and `decode_tok_s` by batch."""
    request = ArmRequest.load(Path(request_file))
    home = Path(request.result_file).parent
    record = home / "schedule"
    os.environ[SCHEDULE_FILE_VARIABLE] = str(record)
    begin = time.perf_counter()
    engine = start(engine_args_of(request))
    start_s = time.perf_counter() - begin
    answers = replay(engine, Workload.load(Path(request.workload_file)))
    counters, steps = counters_of(engine), steps_of(record)
    (home / "ready").touch()
    begin = time.perf_counter()
    while not (home / "go").exists():
        if time.perf_counter() - begin > GO_SECONDS:
            raise TimeoutError("nobody said go")
        time.sleep(0.01)
    rates = {batch: decode_tok_s(engine, batch) for batch in BATCHES} if timed else {}
    report = {**asdict(ArmResult(answers, steps, counters, 0.0)), "start_s": start_s, "decode_tok_s": rates}
    unfinished = home / "unfinished"
    unfinished.write_text(json.dumps(report))
    unfinished.rename(request.result_file)


def decode_tok_s(engine, batch):
    """Tokens a second over all requests, from the step after the first tokens to the last."""
    for tokens in (WARM_UP_TOKENS, TIMED_TOKENS):
        for place in range(batch):
            add(engine, f"{batch}-{tokens}-{place}", place, tokens)
        begun: set[str] = set()
        while len(begun) < batch:  # until every request has its first token
            begun |= {output.request_id for output in engine.step()}
        begin = time.perf_counter()
        while engine.has_unfinished_requests():
            engine.step()
        seconds = time.perf_counter() - begin
    return batch * (TIMED_TOKENS - 1) / seconds


def add(engine, name, place, tokens):
    """Ask for so many tokens after a prompt that is no prefix of another's."""
    from vllm import SamplingParams

    prompt = {"prompt_token_ids": [20 + place, *range(30, 30 + PROMPT_TOKENS - 1)]}
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    engine.add_request(name, prompt, params)


if __name__ == "__main__":
    main(sys.argv[-1], timed="--untimed" not in sys.argv)
