"""What an engine's scheduler does, written down: what each step computes, and its references to KV blocks."""

from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wisp.engines.vllm.taps.scheduler_tap import SchedulerTap, block_name
from wisp.kv_trace import KvEvent, KvTrace

_NAME_BYTES = 96
"""Of host memory, about, for a name in a set."""


@dataclass(frozen=True, eq=False)
class ScheduledSteps:
    """Some consecutive steps: int64 [steps] each, and the KV references made in them, numbered from their first."""

    tokens: NDArray[np.int64]
    prefill_tokens: NDArray[np.int64]
    requests: NDArray[np.int64]
    kv: KvTrace


class SchedulerRecorder:
    """A `SchedulerListener`, from its creation to `stop`. What was written down waits until it is taken.

    A block that is filled counts as a capacity miss if it was there before, since the recording began or at its start.
    With asynchronous scheduling a block is full once its tokens are known, a step or two after they were computed.
    """

    def __init__(self, scheduler: Any, after_step: Callable[[], None] = lambda: None) -> None:
        """Write down from the next step on, and call `after_step` once each is."""
        self.seconds = 0.0
        self.steps = 0
        """Scheduled so far."""
        self._scheduler, self._pool = scheduler, scheduler.kv_cache_manager.block_pool
        self._after_step, self._taken = after_step, 0
        self._counts = [array("q") for _ in range(3)]  # tokens, prefill tokens, requests of each step
        self._blocks, self._steps, self._events = array("Q"), array("q"), array("B")
        self._preemptions = array("q")
        self._known = {block_name(block.block_hash) for block in self._pool.blocks if block.block_hash is not None}
        SchedulerTap.listen(scheduler, self)

    @property
    def waiting_steps(self) -> int:
        """Scheduled and not taken."""
        return self.steps - self._taken

    @property
    def nbytes(self) -> int:
        """Host memory that it holds, about."""
        arrays = (*self._counts, self._blocks, self._steps, self._events, self._preemptions)
        return sum(len(held) * held.itemsize for held in arrays) + len(self._known) * _NAME_BYTES

    def stop(self) -> None:
        """Write down nothing more."""
        SchedulerTap.leave(self._scheduler, self)

    def take(self, steps: int, *, with_rest: bool = False) -> ScheduledSteps:
        """The first `steps` that were not taken yet; `with_rest` counts what happened after the last one to it."""
        end = self._taken + steps
        tokens, prefill, requests = (_cut(held, steps) for held in self._counts)
        references = len(self._steps) if with_rest else bisect_left(self._steps, end)
        preemptions = len(self._preemptions) if with_rest else bisect_left(self._preemptions, end)
        last = max(steps - 1, 0)
        kv = KvTrace(
            _cut(self._blocks, references),
            np.minimum(_cut(self._steps, references) - self._taken, last),
            _cut(self._events, references),
            np.minimum(_cut(self._preemptions, preemptions) - self._taken, last),
            int(self._scheduler.block_size),
            int(self._pool.num_gpu_blocks),
        )
        self._taken = end
        return ScheduledSteps(tokens, prefill, requests, kv)

    def scheduled(self, output: Any) -> None:
        """See `SchedulerListener`."""
        scheduled = output.num_scheduled_tokens
        drafts = {name: len(tokens) for name, tokens in output.scheduled_spec_decode_tokens.items()}
        prefill = sum(count for name, count in scheduled.items() if not self._decodes(name, count, drafts.get(name, 0)))
        for held, count in zip(self._counts, (sum(scheduled.values()), prefill, len(scheduled)), strict=True):
            held.append(count)
        self.steps += 1
        self._after_step()

    def preempted(self) -> None:
        """See `SchedulerListener`."""
        self._preemptions.append(self.steps)

    def found(self, blocks: list[Any]) -> None:
        """See `SchedulerListener`."""
        for block in blocks:
            self._refer(block_name(block.block_hash), KvEvent.HIT)

    def filled(self, blocks: list[Any]) -> None:
        """See `SchedulerListener`."""
        present = self._pool.cached_block_hash_to_block
        for block in blocks:
            name = block_name(block.block_hash)
            if present.get_one_block(block.block_hash) is not block:  # the older of two comes first
                self._refer(name, KvEvent.DUPLICATE)
            else:
                self._refer(name, KvEvent.CAPACITY_MISS if name in self._known else KvEvent.INSERT)

    def _refer(self, name: int, event: KvEvent) -> None:
        self._known.add(name)
        self._blocks.append(name)
        self._steps.append(self.steps)
        self._events.append(event)

    def _decodes(self, name: str, count: int, drafts: int) -> bool:
        """Whether this is the next token of an answer, with drafts of those after it; `schedule` has counted them.

        With asynchronous scheduling the tokens that running steps will bring, this one's included, are placeholders.
        """
        request = self._scheduler.requests[name]
        coming = max(request.num_output_placeholders - 1 - drafts, 0)
        return (
            count - drafts == 1
            and request.num_output_tokens + coming > 0
            and request.num_computed_tokens - drafts == request.num_tokens + coming
        )


def _cut(held: "array[int]", count: int) -> NDArray[Any]:
    """Take the first `count` values out."""
    values = np.array(held[:count], dtype=held.typecode)
    del held[:count]
    return values
