"""Hears what an engine's scheduler does: methods of the scheduler and its block pool, the objects and not their
classes, are wrapped while anybody listens.
"""

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

_PLACE = "_wisp_tap"


class SchedulerListener(Protocol):
    """Called between the engine's steps, so each call costs the engine its time; `seconds` says how much in all."""

    seconds: float

    def scheduled(self, output: Any) -> None:
        """A step with tokens is about to run: vLLM's `SchedulerOutput`."""

    def preempted(self) -> None:
        """A request has lost its blocks to others."""

    def found(self, blocks: list[Any]) -> None:
        """A request has found these blocks in the prefix cache; they come from its last to its first."""

    def filled(self, blocks: list[Any]) -> None:
        """These blocks of a request have become full and are named by their content; from its last to its first."""


class SchedulerTap:
    """All listeners of one scheduler; made at the first `listen`, gone with the last `leave`."""

    def __init__(self, scheduler: Any) -> None:
        self._listeners: list[SchedulerListener] = []
        pool = scheduler.kv_cache_manager.block_pool
        self._wrapped = [
            _wrap(scheduler, "schedule", self._schedule),
            _wrap(scheduler, "_preempt_request", self._preempt),
            _wrap(pool, "touch", self._touch),
            _wrap(pool, "cache_full_blocks", self._cache),
        ]

    @classmethod
    def listen(cls, scheduler: Any, listener: SchedulerListener) -> None:
        """Tell the listener of everything from now on."""
        tap = vars(scheduler).get(_PLACE)
        if tap is None:
            tap = vars(scheduler)[_PLACE] = cls(scheduler)
        tap._listeners.append(listener)

    @classmethod
    def leave(cls, scheduler: Any, listener: SchedulerListener) -> None:
        """Tell it nothing more; once nobody listens, the scheduler is as it was."""
        tap = vars(scheduler).get(_PLACE)
        if tap is None or listener not in tap._listeners:
            return
        tap._listeners.remove(listener)
        if not tap._listeners:
            for owner, name in tap._wrapped:
                del vars(owner)[name]
            del vars(scheduler)[_PLACE]

    def _tell(self, what: Callable[[SchedulerListener], None]) -> None:
        for listener in tuple(self._listeners):  # one may leave when told
            start = time.perf_counter()
            what(listener)
            listener.seconds += time.perf_counter() - start

    def _schedule(self, output: Any, *_: Any, **__: Any) -> None:
        if output.num_scheduled_tokens:
            self._tell(lambda listener: listener.scheduled(output))

    def _preempt(self, *_: Any, **__: Any) -> None:
        self._tell(lambda listener: listener.preempted())

    def _touch(self, _: Any, blocks: Any) -> None:
        named = [block for block in reversed(list(blocks)) if block.block_hash is not None]
        if named:
            self._tell(lambda listener: listener.found(named))

    def _cache(
        self, _: Any, request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int, *__: Any, **___: Any
    ) -> None:
        """Masked and null blocks have no hash."""
        full = blocks[num_cached_blocks:num_full_blocks]
        named = [block for block in reversed(full) if block.block_hash is not None]
        if named:
            self._tell(lambda listener: listener.filled(named))


def block_name(block_hash: bytes) -> int:
    """64 bits of a hash, which ends in the number of its KV cache group."""
    return int.from_bytes(block_hash[:8], "little") ^ int.from_bytes(block_hash[-4:], "big")


def _wrap(owner: Any, name: str, take: Callable[..., None]) -> tuple[Any, str]:
    """Shadow a method on this object; `take` gets its result and arguments afterwards."""
    original = getattr(owner, name)

    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        take(result, *args, **kwargs)
        return result

    setattr(owner, name, wrapped)
    return owner, name
