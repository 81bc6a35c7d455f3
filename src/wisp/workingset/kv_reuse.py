"""How deep references to KV blocks reach: what a pool of any size keeps of the blocks that are asked for again.

vLLM looks a request's blocks up together, keeps those that it finds, and gives all of them back together when the
request ends, the last block first (vLLM 0.32, `SingleTypeKVCacheManager.free`, `BlockPool.free_blocks`): blocks
are evicted by last use, and of one conversation from its end. So, as for experts, depths are those in the stack *as it
stood before the step*; afterwards the step's references are on top in order, a request's first block uppermost. A
conversation of m blocks that comes back at depth D then reaches D to D + m - 1, and a pool in between keeps its
beginning. (Looked up one by one, all of them would reach D + m - 1.)

Two bounds of this. A block goes back when its request ends, not when the step does: where requests run side by side,
those of a long one seem older than they are, and a prompt of several chunks is looked up in parts (one at a time,
`by_turn` puts that right). And a running request holds one block more, which is not full.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wisp.errors import TraceError
from wisp.kv_trace import KvEvent, KvTrace
from wisp.recording import Recording
from wisp.workingset.curve import MissCurve
from wisp.workingset.places import depths_before_step, previous_places


@dataclass(frozen=True, eq=False)
class KvReuse:
    """References to blocks that had been there before, and what else was referenced."""

    depths: NDArray[np.int64]
    """[returns]: a pool of so many blocks or fewer has lost the block and computes it again."""
    steps: NDArray[np.int64]
    """[returns]: the step of each."""
    new_blocks: int
    """References to blocks that had not been there before; a hit on one from before the recording counts as such."""
    computed_twice: int
    """References to blocks that were filled though they were there: no pool saves them, none is charged for them."""
    widest_step: int
    """Distinct blocks of the widest step."""
    distinct_blocks: int
    """With so many nothing is lost."""

    @classmethod
    def of(cls, trace: KvTrace) -> "KvReuse":
        """Of all references of the trace, in O(n log n)."""
        if not len(trace.blocks):
            return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0, 0, 0, 0)
        before, latest = previous_places(trace.blocks)
        starts = np.flatnonzero(np.diff(trace.steps, prepend=-1))
        start = np.repeat(starts, np.diff(starts, append=len(before)))
        again = np.flatnonzero((before >= 0) & (trace.events != KvEvent.DUPLICATE))
        depths = depths_before_step(before, start)[again]
        firsts = np.bincount(start, weights=before < start, minlength=1)
        return cls(
            depths,
            trace.steps[again],
            int(np.count_nonzero((before < 0) & (trace.events != KvEvent.DUPLICATE))),
            trace.count(KvEvent.DUPLICATE),
            int(firsts.max()),
            len(latest),
        )

    @property
    def returns(self) -> int:
        """References that a pool without end would find."""
        return len(self.depths)

    def kept(self, blocks: int) -> int:
        """References that a pool of so many blocks finds."""
        return int(np.count_nonzero(self.depths < blocks))

    def lost(self, blocks: int) -> int:
        """References that it has to compute again: capacity misses."""
        return self.returns - self.kept(blocks)

    def lost_share(self, blocks: int) -> float:
        """The part of the returning references that is lost; 0 where none returns."""
        return self.lost(blocks) / max(self.returns, 1)

    def curve(self) -> MissCurve:
        """Misses by blocks, with first references as the cold ones, up to as many blocks as there are."""
        warm = np.bincount(self.depths, minlength=self.distinct_blocks)
        steps = float(self.steps[-1] + 1) if self.returns else 1.0
        return MissCurve.from_depths(warm, float(self.new_blocks), steps, self.widest_step)


def by_turn(recording: Recording) -> KvTrace:
    """The recorded references, each turn's as one step, from the last block to the first, as vLLM gives them back.

    That is known where requests ran one at a time, and matters where blocks were lost: the chunks in which a prompt was
    computed again would otherwise count as so many look-ups. Everything else is returned as it was recorded.

    Raises:
        TraceError: no KV references were recorded.
    """
    kv, prefill, requests = recording.kv, recording.prefill_tokens, recording.requests
    if kv is None:
        raise TraceError("no KV references were recorded; record with wisp record")
    one_at_a_time = prefill is not None and requests is not None and requests.max(initial=0) <= 1
    if not one_at_a_time or prefill is None or not kv.count(KvEvent.CAPACITY_MISS):
        return kv
    computes = prefill > 0
    looks_up = np.zeros(len(prefill), dtype=np.bool_)
    looks_up[kv.steps[(kv.events == KvEvent.HIT) & (kv.steps < len(prefill))]] = True
    begins = computes & (looks_up | ~np.concatenate([[False], computes[:-1]]))
    begins[:1] = True
    starts = np.flatnonzero(begins)
    turn = np.searchsorted(starts, kv.steps, side="right") - 1
    order = np.lexsort((np.arange(len(turn)), -kv.steps, turn))
    return replace(kv, blocks=kv.blocks[order], steps=starts[turn][order], events=kv.events[order])
