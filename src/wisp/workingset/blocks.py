"""How deep references to KV blocks reach: exact for every capacity up to a bound, however many blocks there are.

A block below the `max_blocks` uppermost of the LRU stack is a miss at every capacity of interest, so it is forgotten:
what lies above a block never depends on what lies below it. Hence bounded memory with no sampling error.

Depths are those in the stack before the step, as in `wisp.workingset.kv_reuse`, which says why. References are counted
in batches of whole steps with numpy alone (`wisp.workingset.places`), the stack before the batch first.
"""

import numpy as np
from numpy.typing import NDArray

from wisp.errors import ConfigError
from wisp.workingset.curve import MissCurve
from wisp.workingset.histogram import HALF_LIFE_STEPS, check_half_life, decay
from wisp.workingset.places import depths_before_step, previous_places

MAX_BLOCKS = 65_536
"""The default bound: a million tokens in blocks of 16, 96 GiB of KV of Qwen3-30B-A3B."""

_BATCH = 65_536  # references counted at once, or max_blocks if that is more: each batch also sorts the stack


class BlockHistogram:
    """The upper part of one LRU stack of blocks, and how often each depth was referenced.

    Its memory is bounded whatever it is shown: 32 bytes for each of `max_blocks`, and some 120 more for each while a
    batch is counted.
    """

    def __init__(
        self,
        *,
        max_blocks: int = MAX_BLOCKS,
        half_life_steps: float | None = HALF_LIFE_STEPS,
    ) -> None:
        if max_blocks < 1:
            raise ConfigError(f"max_blocks is {max_blocks}; give the largest capacity to ask about, 1 or more")
        check_half_life(half_life_steps)
        self.max_blocks, self.half_life_steps = max_blocks, half_life_steps
        self._stack = np.zeros(0, dtype=np.uint64)  # the deepest first
        self._warm = np.zeros(max_blocks)
        self._beyond = 0.0
        self._weighed_at = 0
        self._step = -1
        self._waiting = np.empty(max(_BATCH, max_blocks), dtype=np.uint64)
        self._waiting_steps = np.empty(len(self._waiting), dtype=np.int64)
        self._waiting_count = 0

    def observe(self, blocks: NDArray[np.uint64], step: int) -> None:
        """References to blocks (64-bit names, such as the first bytes of their hashes), made in this step, in order.

        A request's blocks are given from the last to the first, so that it is evicted from its end. Steps count from 0
        and never fall; one may be given in parts, and one without references left out. A step of more references than
        a batch has (65,536, or `max_blocks`) is counted as several.

        Raises:
            ConfigError: a step before the last one, or names of another type.
        """
        if step < max(self._step, 0):
            raise ConfigError(f"step {step} after step {self._step}; give the steps in order")
        if blocks.dtype != np.uint64 or blocks.ndim != 1:
            raise ConfigError(f"blocks must be uint64 [references], not {blocks.dtype} {list(blocks.shape)}")
        self._step = step
        while len(blocks):
            start = self._waiting_count
            taken = min(len(blocks), len(self._waiting) - start)
            self._waiting[start : start + taken] = blocks[:taken]
            self._waiting_steps[start : start + taken] = step
            self._waiting_count += taken
            blocks = blocks[taken:]
            if self._waiting_count == len(self._waiting):
                self._count(self._waiting_before(step) or self._waiting_count)

    def curve(self, step: int | None = None) -> MissCurve:
        """The curve as of the end of `step`, the last one observed if left out, with blocks in the place of slots.

        The misses equal those of `wisp.simulate.simulate_kv` at every capacity from 1 to `max_blocks`; `cold_misses`
        are those of `max_blocks`: first references and deeper ones. What is observed of the last step after this
        counts as another step.

        Raises:
            ConfigError: `step` lies before the last one.
        """
        now = self._step if step is None else step
        if now < self._step:
            raise ConfigError(f"step {now} is over: step {self._step} has been observed")
        self._count(self._waiting_count)
        fade = decay(now - self._weighed_at, self.half_life_steps)
        return MissCurve.from_depths(self._warm * fade, self._beyond * fade, self._steps_until(now), 1)

    def _steps_until(self, now: int) -> float:
        """The weight of the steps 0 to `now`, a geometric series."""
        if self.half_life_steps is None:
            return now + 1.0
        fade = decay(1, self.half_life_steps)
        return (1 - decay(now + 1, self.half_life_steps)) / (1 - fade)

    def _waiting_before(self, step: int) -> int:
        """How much of what waits belongs to earlier steps."""
        return int(np.searchsorted(self._waiting_steps[: self._waiting_count], step))

    def _count(self, count: int) -> None:
        """Count the first so many of what waits."""
        if not count:
            return
        steps = self._waiting_steps[:count].copy()
        names = np.concatenate([self._stack, self._waiting[:count]])
        rest = self._waiting_count - count
        self._waiting[:rest] = self._waiting[count : self._waiting_count]
        self._waiting_steps[:rest] = self._waiting_steps[count : self._waiting_count]
        self._waiting_count = rest
        fade = decay(int(steps[-1]) - self._weighed_at, self.half_life_steps)
        self._weighed_at = int(steps[-1])
        self._warm *= fade
        self._beyond *= fade

        before, latest = previous_places(names)
        starts = np.flatnonzero(np.diff(steps, prepend=-1))
        start = np.repeat(starts, np.diff(starts, append=count)) + len(self._stack)
        depths = depths_before_step(before, np.concatenate([np.arange(len(self._stack)), start]))[len(self._stack) :]
        self._stack = names[latest[-self.max_blocks :]]
        near = depths < self.max_blocks
        if self.half_life_steps is None:
            self._warm += np.bincount(depths[near], minlength=self.max_blocks)
            self._beyond += len(depths) - int(np.count_nonzero(near))
            return
        weights = 0.5 ** ((self._weighed_at - steps) / self.half_life_steps)
        self._warm += np.bincount(depths[near], weights[near], minlength=self.max_blocks)
        self._beyond += float(weights[~near].sum())
