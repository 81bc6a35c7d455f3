"""What turns ask of the KV cache: the share of what they would reuse that a number of blocks has lost.

Either by a stated prior, or by the KV references of a recording; then the turns are the recorded ones too.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from wisp.allocator.kv_layout import NULL_BLOCKS, KvLayout
from wisp.allocator.workload import Workload
from wisp.errors import TraceError
from wisp.kv_trace import KvEvent
from wisp.recording import Recording
from wisp.workingset.kv_reuse import KvReuse, by_turn

_PRIOR = "a stated prior: each turn is any open conversation's with equal probability, blocks go by last use"


class KvDemand(Protocol):
    """What a plan needs to know of KV references."""

    @property
    def workload(self) -> Workload:
        """Whose turns they are; history, new and generated tokens of a turn are means."""

    @property
    def source(self) -> str:
        """Where this comes from, in a line."""

    def lost_share(self, blocks: int) -> float:
        """The part of the histories that turns come back to which is no longer in so many blocks; never rises."""


@dataclass(frozen=True)
class PriorKv:
    """The next turn is any conversation's with equal probability, and blocks are reused in the order of last use.

    Then a conversation is still there with probability blocks / (blocks of all conversations). With no more
    conversations than the admission floor is made for, none is lost above it.
    """

    layout: KvLayout
    workload: Workload
    why: str = ""
    """Why no recorded references were taken, if that needs telling."""

    @property
    def source(self) -> str:
        """The assumption, and why it is made."""
        return f"{_PRIOR}{self.why}"

    def lost_share(self, blocks: int) -> float:
        """Of turns that find their conversation gone."""
        workload = self.workload
        usable = blocks - NULL_BLOCKS - workload.sequences * self.layout.state_blocks
        each = -(-(workload.history + workload.new + workload.output) // self.layout.block_tokens)
        return min(1.0, max(0.0, 1.0 - usable / (workload.conversations * each)))


@dataclass(frozen=True, eq=False)
class TracedKv:
    """The references of a recording, as if the planned server got the same requests in the same order."""

    layout: KvLayout
    workload: Workload
    reuse: KvReuse
    block_tokens: int
    """Of the recorded blocks."""
    source: str

    def lost_share(self, blocks: int) -> float:
        """Of recorded blocks that come back: the miss curve, which is exact (`KvReuse`)."""
        return self.reuse.lost_share(self._recorded_blocks(blocks))

    def _recorded_blocks(self, blocks: int) -> int:
        """What so many blocks of the planned server can keep: each running sequence has one that is not full."""
        each = 1 + self.layout.state_blocks
        usable = blocks - NULL_BLOCKS - self.workload.sequences * each
        return max(0, usable) * self.layout.block_tokens // self.block_tokens


def traced_kv(recording: Recording, layout: KvLayout, workload: Workload) -> TracedKv:
    """The KV references of a recording, and `workload` with its turns.

    A turn is what computes prompt tokens in a step, so that a prompt of several chunks counts as several turns.

    Raises:
        TraceError: the recording has no KV references, or does not tell what belongs to prompts, or computes none; or
            a request decodes several tokens in a step.
    """
    kv, prefill, requests, tokens = recording.kv, recording.prefill_tokens, recording.requests, recording.routing.tokens
    if kv is None or not len(kv.blocks):
        raise TraceError("the trace has no KV references; record it with wisp record, on prompts of more than a block")
    if prefill is None or requests is None or tokens is None:
        raise TraceError(
            "the trace does not count the tokens of its prompts beside its KV references; record it anew, or give "
            "--conversations N to plan by the prior"
        )
    decoded = tokens - prefill
    if odd := int(np.count_nonzero((decoded < 0) | (decoded > requests))):
        raise TraceError(
            f"{odd} steps of the trace decode more tokens than they have requests (as speculation does) or less than "
            f"none, so turns cannot be counted; record without speculation, or give --conversations N to plan by the "
            f"prior"
        )
    turns = int((requests - decoded)[prefill > 0].sum())
    if not turns:
        raise TraceError(
            "no step of the trace computes a prompt, so its KV references tell nothing about turns; record for longer, "
            "or give --conversations N to plan by the prior"
        )
    reuse = KvReuse.of(by_turn(recording))
    recomputed = kv.count(KvEvent.CAPACITY_MISS) * kv.block_tokens
    turn = replace(
        workload,
        history=round(reuse.returns * kv.block_tokens / turns),
        new=max(1, round((int(prefill.sum()) - recomputed) / turns)),
        output=max(1, round(int(decoded.sum()) / turns)),
    )
    what = (
        f"recorded: {len(kv.blocks):,} references to blocks of {kv.block_tokens} tokens in {turns} turns, of which "
        f"{reuse.returns:,} come back, the deepest over {int(reuse.depths.max(initial=0)) * kv.block_tokens:,} tokens"
    )
    return TracedKv(layout, turn, reuse, kv.block_tokens, what)
