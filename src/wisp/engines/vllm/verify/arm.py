"""One engine of a comparison, in a process of its own: `python -m wisp.engines.vllm.verify.arm REQUEST.json`."""

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wisp.engines.vllm.local_engine import counters_of, engine_args, start
from wisp.engines.vllm.verify.layer_result import LayerResult
from wisp.engines.vllm.verify.record import RECORDING_SCHEDULER, SCHEDULE_FILE_VARIABLE, steps_of
from wisp.engines.vllm.verify.workload import Arrival, Workload
from wisp.errors import VerifyError, WispError


@dataclass(frozen=True)
class ArmRequest:
    """What the process is to run; `settings` is the wisp configuration, None for the stock engine."""

    model: str
    settings: dict[str, Any] | None
    workload_file: str
    result_file: str
    engine_flags: tuple[str, ...] = ()
    layerwise: bool = False

    @classmethod
    def load(cls, path: Path) -> "ArmRequest":
        """Read what was written of one, as JSON."""
        raw = json.loads(path.read_text())
        return cls(**{**raw, "engine_flags": tuple(raw["engine_flags"])})


@dataclass(frozen=True)
class Answer:
    """Token ids and, for each, the log-probabilities of the best tokens by id."""

    token_ids: list[int]
    logprobs: list[dict[str, float]]
    cached_tokens: int


@dataclass(frozen=True)
class ArmResult:
    """What the process reports."""

    answers: list[Answer]
    steps: list[list[tuple[int, int]]]
    counters: dict[str, float] | None
    seconds: float
    layers: list[LayerResult] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> "ArmResult":
        """Read what `main` wrote."""
        raw = json.loads(path.read_text())
        if "error" in raw:
            raise VerifyError(raw["error"])
        return cls(
            answers=[Answer(**answer) for answer in raw["answers"]],
            steps=[[(place, count) for place, count in step] for step in raw["steps"]],
            counters=raw["counters"],
            seconds=raw["seconds"],
            layers=[LayerResult(**layer) for layer in raw["layers"]],
        )


def run(request: ArmRequest) -> ArmResult:
    """Start the engine, replay the workload, report."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "schedule"
        os.environ[SCHEDULE_FILE_VARIABLE] = str(record)
        engine = start(engine_args_of(request))
        recorder = None
        ranks = engine.vllm_config.parallel_config.world_size
        if request.layerwise and ranks > 1:
            raise VerifyError(f"--layerwise looks at one rank, and this engine has {ranks}; compare whole engines")
        if request.layerwise:
            from wisp.engines.vllm.verify.layerwise import LayerRecorder

            recorder = LayerRecorder.attach(engine)
        start_seconds = time.perf_counter()
        answers = replay(engine, Workload.load(Path(request.workload_file)))
        seconds = time.perf_counter() - start_seconds
        layers = recorder.compare() if recorder else []
        if recorder and not all(layer.calls for layer in layers):
            raise VerifyError("a layer was never called, so nothing can be said of it; use longer prompts")
        counters = counters_of(engine)
        if (counters is None) != (request.settings is None):
            was = "not paged although it was" if counters is None else "paged although it was not"
            raise VerifyError(f"the engine was {was} to be, so nothing was compared; is VLLM_PLUGINS set without wisp?")
        return ArmResult(answers, steps_of(record), counters, seconds, layers)


def engine_args_of(request: ArmRequest) -> Any:
    """What vLLM is to start."""
    args = engine_args(request.model, request.engine_flags, request.settings)
    args.scheduler_cls = RECORDING_SCHEDULER
    args.async_scheduling = False
    return args


def replay(engine: Any, workload: Workload) -> list[Answer]:
    """Have the engine answer everything, each request as it was recorded to arrive."""
    scheduler = engine.engine_core.engine_core.scheduler
    waiting = list(enumerate(workload.arrivals))
    finished: dict[str, Any] = {}
    while waiting or scheduler.has_requests():
        while waiting and (waiting[0][1].step <= scheduler.steps or not scheduler.has_requests()):
            place, arrival = waiting.pop(0)
            _add(engine, str(place), arrival)
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output
    return [_answer(finished[str(place)]) for place in range(len(workload.arrivals))]


def _add(engine: Any, name: str, arrival: Arrival) -> None:
    from vllm import SamplingParams

    prompt = arrival.text if arrival.token_ids is None else {"prompt_token_ids": list(arrival.token_ids)}
    params = SamplingParams(
        temperature=0.0,
        max_tokens=arrival.max_tokens,
        logprobs=arrival.logprobs,
        ignore_eos=arrival.ignore_eos,
        stop_token_ids=list(arrival.stop_token_ids) or None,
        repetition_penalty=arrival.repetition_penalty,
        presence_penalty=arrival.presence_penalty,
        frequency_penalty=arrival.frequency_penalty,
        detokenize=False,
    )
    engine.add_request(name, prompt, params)


def _answer(output: Any) -> Answer:
    (completion,) = output.outputs
    logprobs = [{str(token): float(entry.logprob) for token, entry in best.items()} for best in completion.logprobs]
    return Answer(list(completion.token_ids), logprobs, output.num_cached_tokens or 0)


def main() -> None:
    """Read the request, run it, write the result."""
    request = ArmRequest.load(Path(sys.argv[1]))
    try:
        result = asdict(run(request))
    except WispError as error:
        Path(request.result_file).write_text(json.dumps({"error": str(error)}))
        sys.exit(2)
    Path(request.result_file).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
