"""What recording costs a running engine; writes results.json.

Run: python benchmarks/record_overhead/run.py --machine "2-core x86-64 VM"

One engine, its core in this process, always answers the same number of requests. First what the hooks cost: short
stretches of steps are recorded and not recorded by turns, in the order on, off, off, on, so that a machine that slows
down slows both alike. Then a recording as a server has it, with a piece a second, which says itself what it cost.
"""

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
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
from wisp.engines.vllm.recording.engine_recorder import EngineRecorder
from wisp.engines.vllm.recording.recording_service import LIMITS
from wisp.engines.vllm.settings import WispSettings

MODEL = Path(__file__).resolve().parents[2] / "demo" / "model"
STREAMS, ANSWER_TOKENS, SLOTS = 4, 200, 16
STEPS, PAIRS, SERVED_STEPS, WARM_STEPS = 8, 600, 1500, 100
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
    """Seconds of one stretch of steps, by the wall clock and of the processor."""

    wall: float
    processor: float


def timed(steps: Iterator[None]) -> Stretch:
    """Run a stretch."""
    start, start_processor = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        next(steps)
    return Stretch(time.perf_counter() - start, time.process_time() - start_processor)


def recorded(core: Any, steps: Iterator[None]) -> Stretch:
    """A stretch with a recording, which begins before it and ends after it."""
    recorder = EngineRecorder(core, LIMITS)
    stretch = timed(steps)
    recorder.take(last=True)
    recorder.stop()
    return stretch


def served(core: Any, steps: Iterator[None]) -> dict[str, float]:
    """What a long recording says that it cost: all its hooks, reading and packing pieces, its beginning and end."""
    start, sent, pieces = time.perf_counter(), 0, 0
    recorder = EngineRecorder(core, LIMITS)
    taken = time.monotonic()
    for step in range(SERVED_STEPS):
        next(steps)
        is_last = step == SERVED_STEPS - 1
        if is_last or time.monotonic() - taken >= TAKE_SECONDS:
            piece = recorder.take(last=is_last)
            with recorder.clocked():
                sent += 0 if piece is None else len(piece.to_bytes())
            taken, pieces = time.monotonic(), pieces + 1
    recorder.stop()
    seconds = time.perf_counter() - start
    return {
        "seconds": round(seconds, 1),
        "pieces": pieces,
        "own_measure_percent": round(recorder.seconds / seconds * 100, 2),
        "own_measure_microseconds_a_step": round(recorder.seconds / SERVED_STEPS * 1e6, 1),
        "bytes_a_step": round(sent / SERVED_STEPS, 1),
    }


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
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    settings = WispSettings(options.slots, recordable=True)
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
    for pair in range(options.pairs):
        for is_on in (True, False) if pair % 2 == 0 else (False, True):
            (on if is_on else off).append(recorded(core, steps) if is_on else timed(steps))
    results = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": options.machine,
        "versions": {"wisp": wisp.__version__, "vllm": vllm.__version__, "python": platform.python_version()},
        "command": shlex.join(["benchmarks/record_overhead/run.py", *sys.argv[1:]]),
        "decided": "device" if settings.decides_on_device(core.vllm_config.device_config.device_type) else "host",
        "streams": STREAMS,
        "pairs": options.pairs,
        "steps_in_a_stretch": STEPS,
        "step_milliseconds": round(float(np.median([stretch.wall for stretch in off])) / STEPS * 1e3, 2),
        "hooks": {part: summary(on, off, part) for part in ("wall", "processor")},
        "served": served(core, steps),
    }
    text = json.dumps(results, indent=2)
    options.output.write_text(text + "\n")
    print(text)
    return int(results["served"]["own_measure_percent"] >= 2 or results["hooks"]["wall"]["median_percent"] >= 2)


if __name__ == "__main__":
    sys.exit(main())
