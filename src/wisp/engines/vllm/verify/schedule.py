"""A scheduler that writes down what arrived before which step, and what each step computed.

Chosen with vLLM's own `--scheduler-cls`, in a paged and in an unpaged server alike.
"""

import os
import pickle
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from wisp.engines.vllm.verify.record import SCHEDULE_FILE_VARIABLE


class RecordingScheduler(Scheduler):  # type: ignore[misc]  # vLLM is not typed
    """vLLM's scheduler, with a record of its steps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps = 0
        self._order: dict[str, int] = {}
        # open as long as the engine runs; unbuffered, so that an engine that is killed leaves whole records
        self._file = Path(os.environ[SCHEDULE_FILE_VARIABLE]).open("wb", buffering=0)  # noqa: SIM115

    def add_request(self, request: Request) -> None:
        """Record the arrival."""
        self._order[request.request_id] = len(self._order)
        params = request.sampling_params
        self._write(
            {
                "request_id": request.request_id,
                "step": self.steps,
                "token_ids": tuple(request.prompt_token_ids or ()),
                "max_tokens": request.max_tokens,
                "stop_token_ids": tuple(sorted(params.all_stop_token_ids)),
                "repetition_penalty": params.repetition_penalty,
                "presence_penalty": params.presence_penalty,
                "frequency_penalty": params.frequency_penalty,
            }
        )
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Record how many tokens of each request (by its place in the order of arrival) the step computes."""
        output = super().schedule(*args, **kwargs)
        self.steps += 1
        tokens = [(self._order[name], count) for name, count in output.num_scheduled_tokens.items()]
        self._write({"tokens": tokens})
        return output

    def _write(self, event: dict[str, Any]) -> None:
        pickle.dump(event, self._file)
