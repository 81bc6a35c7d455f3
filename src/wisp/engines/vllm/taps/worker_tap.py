"""Hears of a worker's forward passes: `execute_model` of the object, not of its class, is wrapped until `stop`."""

import time
from collections.abc import Callable
from typing import Any


class WorkerTap:
    """Calls `ran` with the number of tokens after each forward pass; `seconds` is what those calls have cost.

    Where several are laid over one another, the last one laid is the first to stop.
    """

    def __init__(self, worker: Any, ran: Callable[[int], None]) -> None:
        self.seconds = 0.0
        self._worker, self._ran = worker, ran
        self._before = vars(worker).get("execute_model")
        self._execute = worker.execute_model
        worker.execute_model = self._run

    def _run(self, scheduler_output: Any) -> Any:
        result = self._execute(scheduler_output)
        if scheduler_output.total_num_scheduled_tokens:
            start = time.perf_counter()
            self._ran(scheduler_output.total_num_scheduled_tokens)
            self.seconds += time.perf_counter() - start
        return result

    def stop(self) -> None:
        """Leave the worker as it was."""
        assert vars(self._worker).get("execute_model") == self._run, "what was laid over this has stopped before"
        if self._before is None:
            del self._worker.execute_model
        else:
            self._worker.execute_model = self._before
