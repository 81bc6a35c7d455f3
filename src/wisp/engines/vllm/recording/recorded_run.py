"""An engine that answers prompts and is recorded, in a process of its own: `record_run` starts it and waits."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wisp.conversations import Conversation, Script
from wisp.engines.vllm.engine_process import engine_flags, environment, last_words
from wisp.engines.vllm.local_engine import counters_of, engine_args, start
from wisp.errors import WispError
from wisp.recording import Recording


@dataclass(frozen=True)
class RunRequest:
    """What the process is to run; `settings` is the wisp configuration."""

    model: str
    settings: dict[str, Any]
    script: Script
    trace_file: str
    engine_flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunReport:
    """What it did beside the trace."""

    seconds: float
    """From the first request to the last answer."""
    recorder_seconds: float
    """Of these, spent in recording."""
    counters: dict[str, float] = field(default_factory=dict)
    """The engine's own paging counters."""


def record_run(request: RunRequest) -> RunReport:
    """Run the engine, write the trace; `WispError` says why it did not finish."""
    flags = engine_flags(request.engine_flags)
    with tempfile.TemporaryDirectory(prefix="wisp-record-") as folder:
        home = Path(folder)
        (home / "request.json").write_text(json.dumps(asdict(request) | {"engine_flags": flags}))
        with (home / "log").open("w") as output:
            command = [sys.executable, "-m", __name__, str(home / "request.json"), str(home / "report.json")]
            ended = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environment(), check=False)
        if not (home / "report.json").exists():
            raise WispError(
                f"the engine ended with code {ended.returncode} before it had answered; its last words:\n"
                f"{last_words(home / 'log')}"
            )
        report = json.loads((home / "report.json").read_text())
        if "error" in report:
            raise WispError(report["error"])
        return RunReport(**report)


def _run(request: RunRequest) -> RunReport:
    from wisp.engines.vllm.recording.engine_recorder import EngineRecorder

    args = engine_args(request.model, request.engine_flags, {**request.settings, "recordable": True})
    args.async_scheduling = False
    engine = start(args)
    recorder = EngineRecorder(engine.engine_core.engine_core)
    begin = time.perf_counter()
    _converse(engine, request.script)
    seconds = time.perf_counter() - begin
    recording = recorder.take(last=True)
    recorder.stop()
    Recording.join([] if recording is None else [recording]).save(request.trace_file)
    counters = counters_of(engine)
    assert counters is not None, "an engine that was not paged would not have been recorded"
    return RunReport(seconds, recorder.seconds, counters)


def _converse(engine: Any, script: Script) -> None:
    """Hold all conversations side by side, each turn once the one before is answered."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=script.temperature, max_tokens=script.max_tokens, repetition_penalty=script.repetition_penalty
    )
    tokenizer = engine.get_tokenizer()
    messages: list[list[dict[str, str]]] = [[] for _ in script.conversations]

    def ask(place: int) -> None:
        turns = script.conversations[place].turns
        turn = len(messages[place]) // 2
        if turn == len(turns):
            return
        messages[place].append({"role": "user", "content": turns[turn]})
        engine.add_request(f"{place}-{turn}", _prompt(tokenizer, script, messages[place]), params)

    for place in range(len(messages)):
        ask(place)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                place = int(output.request_id.split("-")[0])
                messages[place].append({"role": "assistant", "content": output.outputs[0].text})
                ask(place)


def _prompt(tokenizer: Any, script: Script, messages: Sequence[dict[str, str]]) -> Any:
    if not script.chat:
        return messages[-1]["content"]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return {"prompt_token_ids": list(tokenizer.encode(text, add_special_tokens=False))}


def main() -> None:
    """Read the request, run it, write the report."""
    raw = json.loads(Path(sys.argv[1]).read_text())
    conversations = tuple(Conversation(c["domain"], tuple(c["turns"])) for c in raw["script"]["conversations"])
    script = Script(**{**raw["script"], "conversations": conversations})
    request = RunRequest(**{**raw, "script": script, "engine_flags": tuple(raw["engine_flags"])})
    report = Path(sys.argv[2])
    try:
        result = asdict(_run(request))
    except WispError as error:
        report.write_text(json.dumps({"error": str(error)}))
        sys.exit(2)
    report.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
