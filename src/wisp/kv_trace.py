"""A trace of references to KV blocks: which block, in which step, and whether it was there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wisp.errors import TraceError


class KvEvent(IntEnum):
    """What became of a reference to a block."""

    HIT = 0
    """A request found the block in the prefix cache."""
    INSERT = 1
    """A block was filled whose content had not been there before."""
    CAPACITY_MISS = 2
    """A block was filled whose content had been there before and was evicted: a larger pool would have kept it."""
    DUPLICATE = 3
    """A block was filled though its content was there: requests computed it side by side, or a prompt's end anew."""


@dataclass(frozen=True, eq=False)
class KvTrace:
    """References in order, those of one request in one step from its last block to its first, as they are evicted.

    A block is named by the first 64 bits of its hash, so by its content and prefix.
    """

    blocks: NDArray[np.uint64]
    """[references]"""
    steps: NDArray[np.int64]
    """[references]: the step of the engine, never falling."""
    events: NDArray[np.uint8]
    """[references]: a `KvEvent` each."""
    preemptions: NDArray[np.int64]
    """[preemptions]: the step in which a request lost its blocks to others."""
    block_tokens: int
    """Tokens in a block."""
    pool_blocks: int
    """Blocks that the engine had."""

    def __post_init__(self) -> None:
        arrays = {"blocks": np.uint64, "steps": np.int64, "events": np.uint8, "preemptions": np.int64}
        for name, dtype in arrays.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != 1:
                raise TraceError(f"KV {name} must be {np.dtype(dtype)} in one dimension, not {array.dtype}")
        if not len(self.blocks) == len(self.steps) == len(self.events):
            raise TraceError(
                f"{len(self.blocks)} KV blocks, {len(self.steps)} steps and {len(self.events)} events: one of each "
                f"belongs to a reference"
            )
        if np.any(np.diff(self.steps) < 0) or np.any(self.steps < 0):
            raise TraceError("the steps of KV references must not fall, nor be negative")
        if np.any(self.events > max(KvEvent)):
            raise TraceError(f"unknown KV event {int(self.events.max())}; known are 0 to {int(max(KvEvent))}")
        if self.block_tokens < 1 or self.pool_blocks < 1:
            raise TraceError(f"a KV pool of {self.pool_blocks} blocks of {self.block_tokens} tokens does not exist")

    def count(self, event: KvEvent) -> int:
        """How many references ended so."""
        return int(np.count_nonzero(self.events == event))

    def part(self, start: int, stop: int) -> "KvTrace":
        """What happened in the steps `start` to `stop`, which are numbered from 0 again."""
        kept = (self.steps >= start) & (self.steps < stop)
        lost = (self.preemptions >= start) & (self.preemptions < stop)
        return replace(
            self,
            blocks=self.blocks[kept],
            steps=self.steps[kept] - start,
            events=self.events[kept],
            preemptions=self.preemptions[lost] - start,
        )

    @classmethod
    def join(cls, parts: Sequence[tuple["KvTrace", int]]) -> "KvTrace":
        """One trace from pieces of one run, each with the number of its first step.

        The pool is that of the first, should it have been resized.
        """
        return replace(
            parts[0][0],
            blocks=np.concatenate([part.blocks for part, _ in parts]),
            steps=np.concatenate([part.steps + start for part, start in parts]),
            events=np.concatenate([part.events for part, _ in parts]),
            preemptions=np.concatenate([part.preemptions + start for part, start in parts]),
        )

    def fields(self) -> dict[str, NDArray[Any]]:
        """What a file holds of the trace, by name."""
        return {
            "kv_blocks": self.blocks,
            "kv_steps": self.steps,
            "kv_events": self.events,
            "kv_preemptions": self.preemptions,
            "kv_block_tokens": np.array(self.block_tokens),
            "kv_pool_blocks": np.array(self.pool_blocks),
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, NDArray[Any]]) -> "KvTrace":
        """The reverse of `fields`.

        Raises:
            KeyError: a field is missing. TraceError: they contradict each other.
        """
        return cls(
            fields["kv_blocks"],
            fields["kv_steps"],
            fields["kv_events"],
            fields["kv_preemptions"],
            int(fields["kv_block_tokens"]),
            int(fields["kv_pool_blocks"]),
        )
