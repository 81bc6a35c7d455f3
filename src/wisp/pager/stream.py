"""Streaming the experts that have no slot past a step that needs nearly all of them: a prefill.

Loading them into slots would throw out every layer's working set once a prompt. Instead they pass through a small
staging area, group after group, while the engine computes the group before; the copies of the next layer start
while the current layer still computes. Which expert is where the host knows from one look at the page tables
before the first layer. Slots that are still free are filled on the way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from wisp.pager.device import DevicePager, DeviceState
from wisp.resident import NOT_RESIDENT


@dataclass(frozen=True)
class StreamShape:
    """`groups` of `group_experts` rows make the staging area; copies run at most `groups` groups ahead."""

    group_experts: int
    groups: int

    @property
    def rows(self) -> int:
        """Staging rows in all."""
        return self.group_experts * self.groups


@dataclass
class _Group:
    """Experts of one layer that are copied together and computed together."""

    layer: int
    experts: tuple[int, ...]
    rows: tuple[int, ...]
    ready: torch.cuda.Event | None = None


@dataclass
class _Step:
    """Everything that one step streams, in the order of copying."""

    groups: list[_Group] = field(default_factory=list)
    of_layer: list[range] = field(default_factory=list)
    filled_slot_of: torch.Tensor | None = None
    filled_row_of: torch.Tensor | None = None
    issued: int = 0
    consumed: list[torch.cuda.Event | None] = field(default_factory=list)


class ExpertStream:
    """Of all layers of a worker. Layers call `waves` in order, starting with layer 0, once a step."""

    def __init__(self, pagers: Sequence[DevicePager], state: DeviceState, shape: StreamShape) -> None:
        self._pagers, self._state, self.shape = pagers, state, shape
        self._arena = pagers[0].arena
        self._on_gpu = self._arena.device.type == "cuda"
        self._copies = torch.cuda.Stream(self._arena.device) if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._step = _Step()
        self.streamed_groups = 0

    def waves(self, layer: int, topk_ids: torch.Tensor) -> Iterator[torch.Tensor]:
        """The layer's experts in waves: int64 [experts], the arena row of each expert of the wave, -1 for others.

        Launch the kernel on each wave before taking the next. The first wave holds the resident experts.
        """
        if layer == 0:
            self._begin()
        step, pager = self._step, self._pagers[layer]
        groups = step.of_layer[layer]
        slot_of = self._state.slot_of[layer]
        pager.touch(topk_ids, moved=sum(len(step.groups[i].experts) for i in groups))
        self._issue(groups.start + self.shape.groups)
        yield torch.where(slot_of >= 0, self._state.row_of[layer], NOT_RESIDENT)
        for index in groups:
            self._issue(index + 1)
            group = step.groups[index]
            if group.ready is not None:
                torch.cuda.current_stream().wait_event(group.ready)
            yield self._table(group)
            step.consumed[index] = self._record()
            self._issue(index + 1 + self.shape.groups)
            self.streamed_groups += 1
        if step.filled_slot_of is not None and step.filled_row_of is not None:
            slot_of.copy_(step.filled_slot_of[layer])
            self._state.row_of[layer].copy_(step.filled_row_of[layer])

    def _begin(self) -> None:
        """Look at the page tables (the one synchronisation of the step) and lay out the copies."""
        table = self._state.slot_of.cpu().clone()
        row_of = self._state.row_of.cpu().clone()
        shape, step = self._arena.shape, _Step()
        for layer in range(shape.layers):
            slots = table[layer].tolist()
            missing = [expert for expert, slot in enumerate(slots) if slot < 0]
            free = range(len(slots) - len(missing), shape.slots)
            start = len(step.groups)
            size = self.shape.group_experts
            fills = list(zip(missing, free, strict=False))
            for expert, slot in fills:
                table[layer, expert] = slot
                row_of[layer, expert] = shape.slot_row(layer, slot)
            for first in range(0, len(fills), size):
                part = fills[first : first + size]
                step.groups.append(
                    _Group(layer, tuple(e for e, _ in part), tuple(shape.slot_row(layer, slot) for _, slot in part))
                )
            passing = missing[len(fills) :]
            for first in range(0, len(passing), size):
                part_experts = tuple(passing[first : first + size])
                place = len(step.groups) % self.shape.groups * size
                rows = tuple(shape.staging_row(place + i) for i in range(len(part_experts)))
                step.groups.append(_Group(layer, part_experts, rows))
            step.of_layer.append(range(start, len(step.groups)))
        step.consumed = [None] * len(step.groups)
        step.filled_slot_of = table.to(self._arena.device)
        step.filled_row_of = row_of.to(self._arena.device)
        if self._copies is not None:
            self._copies.wait_stream(torch.cuda.current_stream())
        self._step = step

    def _issue(self, end: int) -> None:
        """Start the copies of all groups before `end`, each once the staging rows that it takes are free."""
        step = self._step
        while step.issued < min(end, len(step.groups)):
            group = step.groups[step.issued]
            before = step.issued - self.shape.groups
            if self._copies is None:
                self._copy(group)
            else:
                with torch.cuda.stream(self._copies):
                    if before >= 0 and (freed := step.consumed[before]) is not None:
                        self._copies.wait_event(freed)
                    self._copy(group)
                    group.ready = self._record()
            step.issued += 1

    def _copy(self, group: _Group) -> None:
        source, target = self._pagers[group.layer].store.rows, self._arena.rows
        for expert, row in zip(group.experts, group.rows, strict=True):
            target[row].copy_(source[expert], non_blocking=True)

    def _record(self) -> torch.cuda.Event | None:
        if not self._on_gpu:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _table(self, group: _Group) -> torch.Tensor:
        table = torch.full((self._state.num_experts,), NOT_RESIDENT, dtype=torch.int64)
        table[list(group.experts)] = torch.tensor(group.rows, dtype=torch.int64)
        return table.to(self._arena.device, non_blocking=False)
