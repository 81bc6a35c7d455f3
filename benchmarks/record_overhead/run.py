"""What recording costs a running engine, measured in pairs; writes results.json.

Run: python benchmarks/record_overhead/run.py --machine "2-core x86-64 VM"

One engine, its core in this process, always answers the same number of requests. Stretches of steps are recorded and
not recorded by turns, in the order on, off, off, on, so that a machine that slows down slows both alike. A recorded
stretch pays for everything: starting, its hooks, reading and packing a piece a second, and ending.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import vllm
from vllm import EngineArgs, SamplingParams
from vllm.v1.engine.llm_engine import LLMEngine

import wisp
from wisp.cli.served_recording import TAKE_SECONDS
from wisp.engines.vllm.recording import EngineRecorder
from wisp.engines.vllm.recording_service import LIMITS
from wisp.engines.vllm.settings import WispSettings

MODEL = Path(__file__).resolve().parents[2] / "demo" / "model"
STREAMS, ANSWER_TOKENS, SLOTS = 4, 200, 16
STEPS, PAIRS, WARM_STEPS = 150, 30, 100
PROMPT = "Tell a story about Captain Ahab. " * 8


def steps_of(engine: Any) -> Iterator[None]:
    """Step for ever, with as many requests as there are streams; most steps decode, some prefill a prompt."""
    params = SamplingParams(max_tokens=ANSWER_TOKENS, ignore_eos=True, temperature=0)
    asked = running = 0
    while True:
        while running < STREAMS:
            engine.add_request(str(asked), f"{asked} {PROMPT}", params)
            asked, running = asked + 1, running + 1
        running -= sum(output.finished for output in engine.step())
        yield


@dataclass
class Stretch:
    """Seconds of one stretch: by the wall clock, of the processor, and the median step's of the processor."""

    wall: float
    processor: float
    median_step: float


def nothing() -> None:
    """Of a stretch that is not recorded."""


def timed(
    step: Callable[[], None],
    begin: Callable[[], None] = nothing,
    after: Callable[[], None] = nothing,
    end: Callable[[], None] = nothing,
) -> Stretch:
    """Run a stretch: `begin` goes before the first step, `after` follows each, `end` the last."""
    steps = []
    start, start_processor = time.perf_counter(), time.process_time()
    begin()
    for _ in range(STEPS):
        began = time.process_time()
        step()
        after()
        steps.append(time.process_time() - began)
    end()
    return Stretch(time.perf_counter() - start, time.process_time() - start_processor, float(np.median(steps)))


def recorded(core: Any, step: Callable[[], None]) -> tuple[Stretch, float, int]:
    """A stretch with a recording, as a server has it; what it says that it cost, and the bytes it sent."""
    recorder: EngineRecorder
    taken, sent = 0.0, 0

    def begin() -> None:
        nonlocal recorder, taken
        recorder, taken = EngineRecorder(core, LIMITS), time.monotonic()

    def take(*, last: bool) -> None:
        nonlocal taken, sent
        piece = recorder.take(last=last)
        with recorder.clocked():
            sent += 0 if piece is None else len(piece.to_bytes())
        taken = time.monotonic()

    def take_now_and_then() -> None:
        if time.monotonic() - taken >= TAKE_SECONDS:
            take(last=False)

    def end() -> None:
        take(last=True)
        recorder.stop()

    return timed(step, begin, take_now_and_then, end), recorder.seconds, sent


def summary(on: list[Stretch], off: list[Stretch], part: str) -> dict[str, Any]:
    """Ratios of pairs less 1, in percent: the median, and 95 % of the medians of resampled pairs."""
    ratios = np.array([(getattr(a, part) / getattr(b, part) - 1) * 100 for a, b in zip(on, off, strict=True)])
    resampled = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(resampled, axis=1), (2.5, 97.5))
    return {"median_percent": round(float(np.median(ratios)), 2), "interval_percent": [round(low, 2), round(high, 2)]}


def main() -> int:
    """Measure and write; 1 if recording costs 2 % or more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", required=True, help='the kind of machine in words: "2-core x86-64 VM"')
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--graphs", action="store_true", help="without --enforce-eager: on a GPU, inside CUDA graphs")
    options = parser.parse_args()
    settings = WispSettings(options.slots)
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=options.model,
            enforce_eager=not options.graphs,
            max_model_len=512,
            max_num_seqs=STREAMS,
            additional_config={"wisp": asdict(settings)},
        )
    )
    core, steps = engine.engine_core.engine_core, steps_of(engine)
    for _ in range(WARM_STEPS):
        next(steps)
    on: list[Stretch] = []
    off: list[Stretch] = []
    own_seconds, sent = 0.0, 0
    for pair in range(options.pairs):
        for is_on in (True, False) if pair % 2 == 0 else (False, True):
            if is_on:
                stretch, own, piece_bytes = recorded(core, lambda: next(steps))
                own_seconds, sent = own_seconds + own, sent + piece_bytes
                on.append(stretch)
            else:
                off.append(timed(lambda: next(steps)))
    recorded_steps = STEPS * options.pairs
    results = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": options.machine,
        "versions": {"wisp": wisp.__version__, "vllm": vllm.__version__, "python": platform.python_version()},
        "command": " ".join(["benchmarks/record_overhead/run.py", *sys.argv[1:]]),
        "decided": "device" if settings.decides_on_device(core.vllm_config.device_config.device_type) else "host",
        "streams": STREAMS,
        "pairs": options.pairs,
        "steps_in_a_stretch": STEPS,
        "median_step_milliseconds": round(float(np.median([stretch.median_step for stretch in off])) * 1e3, 2),
        "slower": {part: summary(on, off, part) for part in ("wall", "processor", "median_step")},
        "own_measure_percent": round(own_seconds / sum(stretch.wall for stretch in on) * 100, 2),
        "own_measure_microseconds_a_step": round(own_seconds / recorded_steps * 1e6, 1),
        "bytes_a_step": round(sent / recorded_steps, 1),
    }
    text = json.dumps(results, indent=2)
    Path(__file__).with_name("results.json").write_text(text + "\n")
    print(text)
    return int(results["own_measure_percent"] >= 2 or results["slower"]["median_step"]["median_percent"] >= 2)


if __name__ == "__main__":
    sys.exit(main())
