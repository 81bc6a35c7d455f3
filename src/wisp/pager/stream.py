"""Streaming the experts that have no slot past a step that needs nearly all of them: a prefill.

Loading them into slots would throw out every layer's working set once a prompt. Instead they pass through a small
staging area, group after group, while the engine computes the group before; the copies of the next layer start
while the current layer still computes. Which expert is where the host knows from one look at the page tables
before the first layer. Slots that are still free are filled on the way.

A kernel that has to see all experts of a layer at once (a planar arena's) gets them in one piece: all of its groups
are copied before it starts, and the first of the next layer's beside it, as far as there are rows.

The staging rows are also those of a step's overflow. That is safe since copies begin only once all that was launched
before a streamed step is done, and the kernels of a streamed step wait for every one of them.
"""

from collections.abc import Iterator, Sequence
from typing import NoReturn

import torch

from wisp.errors import WispError
from wisp.pager.device import DevicePager
from wisp.pager.device_state import DeviceState
from wisp.pager.stream_layout import StreamLayout, StreamShape, lay_out
from wisp.resident import NOT_RESIDENT


class _Step:
    """A layout on the device, and how far its copying and computing have come."""

    def __init__(self, layout: StreamLayout, device: torch.device) -> None:
        self.groups, self.of_layer = layout.groups, layout.of_layer
        self.row_of, self.pairs, self.filled_slot_of, self.filled_row_of = (
            torch.from_numpy(table).to(device)
            for table in (layout.row_of, layout.pairs, layout.filled_slot_of, layout.filled_row_of)
        )
        self.issued = 0
        """Groups whose copies have been launched."""
        self.computed = 0
        """Groups whose kernel has been launched."""
        self.copied: list[torch.cuda.Event | None] = [None] * len(layout.groups)
        self.consumed: list[torch.cuda.Event | None] = [None] * len(layout.groups)
        """When a group's copies, and its kernel, have ended."""


class ExpertStream:
    """Of all layers of a worker. Layers call `waves` in order, starting with layer 0, once a step."""

    def __init__(self, pagers: Sequence[DevicePager], state: DeviceState, shape: StreamShape) -> None:
        self._pagers, self._state, self.shape = pagers, state, shape
        self._arena = pagers[0].arena
        self._on_gpu = self._arena.device.type == "cuda"
        self._copies = torch.cuda.Stream(self._arena.device) if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._step: _Step
        """There from the first step on."""
        self._next_layer = 0

    def waves(self, layer: int, topk_ids: torch.Tensor) -> Iterator[torch.Tensor]:
        """The layer's experts in waves: int64 [experts], the arena row of each expert of the wave, -1 for others.

        Launch the kernel on each wave before taking the next. The first wave holds the resident experts; of a whole
        layer it is the only one, and holds all.

        Raises:
            WispError: another layer's turn it is, or the step before was left by some layer.
        """
        if layer == 0 and self._next_layer in (0, len(self._pagers)):
            self._begin()
        if layer != self._next_layer:
            self._refuse(f"layer {layer} streams its experts")
        step, groups = self._step, self._step.of_layer[layer]
        moved = sum(len(step.groups[index].experts) for index in groups)
        self._pagers[layer].touch(topk_ids, moved=moved, waves=1 if self.shape.whole else 1 + len(groups))
        yield from self._in_one_piece(layer) if self.shape.whole else self._by_group(layer)
        self._state.slot_of[layer].copy_(step.filled_slot_of[layer])
        self._state.row_of[layer].copy_(step.filled_row_of[layer])
        self._next_layer = layer + 1

    def check_is_idle(self, layer: int) -> None:
        """Say that a layer computes in place, from slots and rows that copies of a streamed step may be under way to.

        Raises:
            WispError: such a step has not come to its end.
        """
        if self._next_layer not in (0, len(self._pagers)):
            self._refuse(f"layer {layer} computes in place")

    def _by_group(self, layer: int) -> Iterator[torch.Tensor]:
        step, groups = self._step, self._step.of_layer[layer]
        self._issue(groups.start + self.shape.groups)
        yield torch.where(self._state.slot_of[layer] >= 0, self._state.row_of[layer], NOT_RESIDENT)
        for index in groups:
            self._wait_for(range(index, index + 1))
            yield step.row_of[index]
            self._note_computed(range(index, index + 1))

    def _in_one_piece(self, layer: int) -> Iterator[torch.Tensor]:
        groups = self._step.of_layer[layer]
        self._wait_for(groups)
        self._issue(groups.stop + self.shape.groups)
        yield self._step.row_of[layer]
        self._note_computed(groups)

    def _wait_for(self, groups: range) -> None:
        """Have whatever is launched from now on wait for the copies of these groups."""
        self._issue(groups.stop)
        assert self._step.issued >= groups.stop, "what was computed leaves rows for all that is computed next"
        for ready in (self._step.copied[index] for index in groups):
            if ready is not None:
                torch.cuda.current_stream().wait_event(ready)

    def _note_computed(self, groups: range) -> None:
        """What has been launched computes from these groups; the copies into their rows wait for it."""
        ended = self._record()
        for index in groups:
            self._step.consumed[index] = ended
        self._step.computed = groups.stop
        self._issue(groups.stop + self.shape.groups)

    def _refuse(self, what: str) -> NoReturn:
        expected = self._next_layer
        self._give_up()
        raise WispError(
            f"{what} where layer {expected} was to stream: this model runs its layers out of order, leaves some out, "
            f"or has them compute fewer tokens than those before; set decide to host and add --enforce-eager"
        )

    def _give_up(self) -> None:
        """Let no copy of a step that was left unfinished run beside what comes next."""
        if self._copies is not None:
            torch.cuda.current_stream().wait_stream(self._copies)
        self._next_layer = 0

    def _begin(self) -> None:
        """Look at the page tables (the one synchronisation of the step) and lay out the copies."""
        self._give_up()  # what an unfinished step may still be copying
        state, arena = self._state, self._arena
        row_of = torch.where(state.slot_of >= 0, state.row_of, state.home_row_of)
        layout = lay_out(arena.shape, self.shape, state.slots, state.slot_of.cpu().numpy(), row_of.cpu().numpy())
        self._step = _Step(layout, arena.device)
        if self._copies is not None:
            self._copies.wait_stream(torch.cuda.current_stream())

    def _issue(self, end: int) -> None:
        """Start the copies of groups before `end`, as far as what lies in their staging rows has been launched."""
        step = self._step
        while step.issued < min(end, len(step.groups)):
            group = step.groups[step.issued]
            if group.before is not None and group.before >= step.computed:
                return
            if self._copies is None:
                self._copy(step.issued)
            else:
                with torch.cuda.stream(self._copies):
                    if group.before is not None:
                        freed = step.consumed[group.before]
                        assert freed is not None, "what is computed is waited for"
                        self._copies.wait_event(freed)
                    self._copy(step.issued)
                    step.copied[step.issued] = self._record()
            step.issued += 1

    def _copy(self, index: int) -> None:
        group = self._step.groups[index]
        pager, count = self._pagers[group.layer], len(group.experts)
        if not self._arena.reaches(pager.store):  # in pieces, too small for the copy engine, or too many
            experts, rows = self._step.pairs[index]
            pager.copy(experts[:count], rows[:count])
            return
        source, target = pager.store.rows, self._arena.rows
        assert source is not None, "what the arena reaches lies in rows"
        for expert, row in zip(group.experts, group.rows, strict=True):
            target[row].copy_(source[expert], non_blocking=True)

    def _record(self) -> torch.cuda.Event | None:
        if not self._on_gpu:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event
