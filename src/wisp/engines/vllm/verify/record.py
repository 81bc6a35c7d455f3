"""The file in which a schedule is recorded: what arrived before which step, and what each step computed."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wisp.engines.vllm.verify.workload import Arrival, Workload

RECORDING_SCHEDULER = "wisp.engines.vllm.verify.schedule.RecordingScheduler"
"""For vLLM's `--scheduler-cls`."""

SCHEDULE_FILE_VARIABLE = "WISP_SCHEDULE_FILE"
"""Environment variable that names the file; read when the scheduler is made, in whatever process that is."""


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """What was recorded, in order; a record cut off by the engine's end is dropped."""
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return


def steps_of(path: Path) -> list[list[tuple[int, int]]]:
    """Tokens computed, step by step: (place of the request in the order of arrival, tokens)."""
    return [event["tokens"] for event in read_events(path) if "tokens" in event]


def arrivals_of(path: Path, *, logprobs: int) -> tuple[list[str], Workload]:
    """The requests of a recorded server: their ids, and the workload that replays them."""
    events = [event for event in read_events(path) if "request_id" in event]
    request_ids = [event.pop("request_id") for event in events]
    return request_ids, Workload(tuple(Arrival(**event, ignore_eos=False, logprobs=logprobs) for event in events))
