"""How deep references to KV blocks reach, counted beside the scheduler while it serves."""

from array import array
from typing import Any

import numpy as np

from wisp.engines.vllm.taps.scheduler_tap import SchedulerTap, block_name
from wisp.workingset.blocks import MAX_BLOCKS, BlockHistogram
from wisp.workingset.curve import MissCurve


class KvMeter:
    """A `SchedulerListener` with the decayed histogram of an engine's blocks.

    A reference is a block that a request finds in the prefix cache or fills, counted one by one, so that all blocks of
    a conversation that returns seem as deep as the deepest of them (`wisp.workingset.kv_reuse` says more). Exact up to
    twice the blocks of the pool, or 65,536 if that is more; its memory is bounded by that.
    """

    def __init__(self, scheduler: Any) -> None:
        self.seconds = 0.0
        self._pool = scheduler.kv_cache_manager.block_pool
        self.block_tokens = int(scheduler.block_size)
        self._histogram = BlockHistogram(max_blocks=max(MAX_BLOCKS, 2 * int(self._pool.num_gpu_blocks)))
        self._names = array("Q")  # of the step that is being scheduled
        self._steps = 0
        self._scheduler = scheduler
        SchedulerTap.listen(scheduler, self)

    @property
    def pool_blocks(self) -> int:
        """Blocks that the engine has now."""
        return int(self._pool.num_gpu_blocks)

    def stop(self) -> None:
        """Leave the scheduler as it was."""
        SchedulerTap.leave(self._scheduler, self)

    def curve(self) -> MissCurve:
        """As of now, with blocks in the place of slots."""
        self._observe()
        return self._histogram.curve(self._steps)

    def scheduled(self, output: Any) -> None:
        """See `SchedulerListener`."""
        self._observe()
        self._steps += 1

    def preempted(self) -> None:
        """See `SchedulerListener`."""

    def found(self, blocks: list[Any]) -> None:
        """See `SchedulerListener`."""
        self._names.extend(block_name(block.block_hash) for block in blocks)

    def filled(self, blocks: list[Any]) -> None:
        """See `SchedulerListener`."""
        self._names.extend(block_name(block.block_hash) for block in blocks)

    def _observe(self) -> None:
        if self._names:
            self._histogram.observe(np.array(self._names, dtype=np.uint64), self._steps)
            del self._names[:]
