"""Paging decided on the device: what `pager.ExpertPager` does on the host, inside a CUDA graph.

The decisions are those of `ResidentSet.plan(step, direct=True)` with LRU, expert by expert.
"""

from functools import partial

import torch
import triton

from wisp.errors import WorkingSetTooLargeError
from wisp.pager import copy_kernels, count_kernels, device_kernels
from wisp.pager.arena import WORD_BYTES, Arena
from wisp.pager.device_state import DeviceState
from wisp.pager.device_view import device_view
from wisp.pager.store import ExpertStore
from wisp.pager.tails import TailCopies

LEAST_CHUNK, MOST_CHUNK = 16, 64
"""Ids compared with all experts at a time: all of a step's, as far as registers go."""
BLOCK_WORDS = 4096
PROGRAMS = 16
"""Programs that copy: enough for the link, few enough to leave other kernels alone (measured on an H200)."""
WARPS = 4
"""Of each program that decides or copies."""


class DevicePager:
    """One layer's page table and copies on the device."""

    def __init__(
        self,
        layer: int,
        state: DeviceState,
        store: ExpertStore,
        arena: Arena,
        *,
        link_bytes_per_second: float,
        source: torch.Tensor | None = None,
        tails: TailCopies | None = None,
    ) -> None:
        """Page layer number `layer`; `source` (like `store.rows`, or `store.addresses()` where the arena does not reach
        the store) is copied from in place of the store.

        With `tails`, `page_head` may leave the tails of rows to them (an interleaved arena's only).
        Copies inside a graph are not timed one by one: their seconds are bytes over `link_bytes_per_second`.
        """
        self.layer, self.store, self.arena = layer, store, arena
        self.num_experts = store.num_experts
        self.link_bytes_per_second = link_bytes_per_second
        self._state = state
        self._padded = triton.next_power_of_2(store.num_experts)
        self._places: torch.Tensor | None = None
        self._arena_words: torch.Tensor | None = None
        self._direct_row: int | None = None
        self._row_words = 0
        if arena.reaches(store):
            assert store.rows is not None
            words = (store.rows if source is None else source).view(torch.int32)
            self._source, self._row_words = device_view(words, arena.device), words.shape[1]
            self._arena_words, self._direct_row = arena.rows.view(torch.int32), arena.direct_row(store)
        else:
            self._places = arena.places(store)
            self._source = (store.addresses() if source is None else source).to(arena.device)
        self._tails = tails

    def page(self, topk_ids: torch.Tensor) -> torch.Tensor:
        """Make the experts of `topk_ids` [tokens, k] resident, as many as there are slots; no synchronisation.

        Returns int64 [tokens * k]: the arena row of each choice. An expert beyond the slots has an overflow row,
        its own until the next step of any layer; beyond these it has its row of the store, if the arena reaches it.

        Raises:
            WorkingSetTooLargeError: the step could need more experts than slots and overflow rows have room for.
        """
        return self._decide(topk_ids, self._row_words, len(self.store.segments))

    def page_head(self, topk_ids: torch.Tensor) -> torch.Tensor:
        """As `page`, but the tails of loaded rows arrive beside what is launched next, until `wait_for_tails`."""
        if self._tails is None:
            return self.page(topk_ids)
        head_bytes = self._tails.head_bytes
        head_words = min(head_bytes // WORD_BYTES, self._row_words)
        head_segments = sum(segment.start < head_bytes for segment in self.store.segments)
        choice_rows = self._decide(topk_ids, head_words, head_segments)
        self._tails.start(partial(self._gather_tails, head_words, head_segments))
        return choice_rows

    def wait_for_tails(self) -> None:
        """Whatever is launched from now on finds the loaded rows whole."""
        if self._tails is not None:
            self._tails.wait()

    def _decide(self, topk_ids: torch.Tensor, head_words: int, head_segments: int) -> torch.Tensor:
        ids = topk_ids.reshape(-1)
        choice_rows = torch.empty(ids.shape, dtype=torch.int64, device=ids.device)
        state, shape = self._state, self.arena.shape
        segments = 0 if self._places is None else len(self.store.segments)
        if segments:
            self._check_overflow(ids.numel())
        device_kernels.decide_and_gather[(self._programs(),)](
            ids,
            ids.numel(),
            choice_rows,
            state.slot_of[self.layer],
            state.row_of[self.layer],
            state.last_used[self.layer],
            state.fields[self.layer],
            state.mirror_on_device[self.layer],
            state.ring.words[0, self.layer],
            self._source,
            self._arena_words,
            self._places,
            state.loaded[self.layer],
            shape.slot_row(self.layer, 0),
            shape.layers,
            self._direct_row,
            shape.staging_rows,
            self.num_experts,
            CHUNK=max(LEAST_CHUNK, min(MOST_CHUNK, triton.next_power_of_2(ids.numel()))),
            EXPERTS=self._padded,
            ROW_WORDS=self._row_words,
            HEAD_WORDS=head_words,
            SEGMENTS=segments,
            HEAD_SEGMENTS=head_segments if segments else 0,
            BLOCK=BLOCK_WORDS,
            num_warps=WARPS,
            RING_STEPS=state.ring.steps,
            RING_STRIDE=state.ring.words.stride(0),
        )
        return choice_rows

    def _gather_tails(self, head_words: int, head_segments: int) -> None:
        loaded = self._state.loaded[self.layer]
        if self._places is None:
            copy_kernels.gather_tails[(self._programs(),)](
                loaded,
                self._source,
                self._arena_words,
                ROW_WORDS=self._row_words,
                HEAD_WORDS=head_words,
                BLOCK=BLOCK_WORDS,
                num_warps=WARPS,
            )
        else:
            copy_kernels.gather_tail_segments[(self._programs(),)](
                loaded,
                self._source,
                self._places,
                SEGMENTS=len(self.store.segments),
                HEAD_SEGMENTS=head_segments,
                BLOCK=BLOCK_WORDS,
                num_warps=WARPS,
            )

    def copy(self, experts: torch.Tensor, rows: torch.Tensor) -> None:
        """Copy experts[i] of the store to rows[i] (int64, on the device); no synchronisation.

        For a store that the arena does not reach: a row of one that it does is one copy, which needs no kernel.
        """
        assert self._places is not None
        copy_kernels.copy_experts[(self._programs(),)](
            experts,
            rows,
            experts.numel(),
            self._source,
            self._places,
            SEGMENTS=len(self.store.segments),
            BLOCK=BLOCK_WORDS,
        )

    def rows_of(self, experts: torch.Tensor, row_of: torch.Tensor | None = None) -> torch.Tensor:
        """The arena row of each expert id, int64, -1 for what is no expert; by the page table, or by `row_of`."""
        return look_up(experts, self._state.row_of[self.layer] if row_of is None else row_of)

    def touch(self, topk_ids: torch.Tensor, *, moved: int, waves: int) -> None:
        """Count a step that the host streams in `waves` waves: `moved` experts are read for it from the store."""
        needed = torch.zeros(self.num_experts, dtype=torch.int32, device=topk_ids.device)
        ids = topk_ids.reshape(-1).long()
        needed.scatter_add_(0, ids.clamp(min=0), (ids >= 0).int())  # engines mark padding by -1
        state = self._state
        count_kernels.touch[(1,)](
            needed,
            state.slot_of[self.layer],
            state.last_used[self.layer],
            state.fields[self.layer],
            state.mirror_on_device[self.layer],
            state.ring.words[0, self.layer],
            self.num_experts,
            moved,
            waves,
            EXPERTS=self._padded,
            RING_STEPS=state.ring.steps,
            RING_STRIDE=state.ring.words.stride(0),
        )

    def totals(self) -> dict[str, float]:
        """What this layer did so far, by the names of `counters.FIELDS`; reads host memory only."""
        steps, references, faults, evictions, moved, waves = self._state.counts(self.layer)
        bytes_moved = moved * self.store.expert_bytes
        return {
            "steps": steps,
            "references": references,
            "faults": faults,
            "bytes_moved": bytes_moved,
            "evictions": evictions,
            "waves": waves,
            "copy_seconds": bytes_moved / self.link_bytes_per_second,
        }

    def _check_overflow(self, choices: int) -> None:
        need = min(self.num_experts, choices)
        room = self._state.slots + self.arena.shape.staging_rows
        if need > room:
            raise WorkingSetTooLargeError(need, room, why=f"a step of {choices} choices of experts")

    def _programs(self) -> int:
        return PROGRAMS if self.arena.device.type == "cuda" else 1


def look_up(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """`table[ids]` as int64 in one launch, -1 for an id that the table does not have; `ids` is contiguous."""
    found = torch.empty(ids.shape, dtype=torch.int64, device=ids.device)
    block = 1024
    device_kernels.look_up[(triton.cdiv(ids.numel(), block),)](
        ids, found, ids.numel(), table, table.numel(), BLOCK=block
    )
    return found
