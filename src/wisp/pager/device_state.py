"""The page tables of all layers on a device."""

from collections.abc import Sequence
from threading import Lock

import torch

from wisp.errors import ConfigError
from wisp.pager.arena import Arena
from wisp.pager.count_kernels import FIELDS, SLOTS, WAVES
from wisp.pager.device_view import device_view
from wisp.pager.resize import resized_table
from wisp.pager.routing_ring import RingReader, RoutingRing
from wisp.pager.side_copies import SideCopies
from wisp.pager.store import ExpertStore
from wisp.resident import NOT_RESIDENT


class DeviceState:
    """The page tables of all layers on the device, and totals that the host can read without waiting."""

    def __init__(self, arena: Arena, stores: Sequence[ExpertStore]) -> None:
        """One table for each of these stores, whose layers share the arena."""
        layers, num_experts, device = len(stores), stores[0].num_experts, arena.device
        self.num_experts, self.device, self._arena = num_experts, device, arena
        self.slot_of = torch.full((layers, num_experts), NOT_RESIDENT, dtype=torch.int32, device=device)
        self.home_row_of = torch.stack([arena.home_rows(store) for store in stores]).to(device)
        """int64 [layers, experts]: the row of an expert without a slot."""
        self.row_of = self.home_row_of.clone()
        self.last_used = torch.zeros((layers, num_experts), dtype=torch.int64, device=device)
        self.fields = torch.zeros((layers, FIELDS.value), dtype=torch.int64, device=device)
        self._set_slots(arena.shape.slots)
        self.mirror = torch.zeros(self.fields.shape, dtype=torch.int64, pin_memory=device.type == "cuda")
        """A copy of `fields` in host memory, written by the device; some steps behind at times."""
        self.mirror_on_device = device_view(self.mirror, device)
        self._found = torch.zeros_like(self.mirror, pin_memory=device.type == "cuda")
        """What `catch_up` has read of them."""
        self._shown = self.mirror.clone()
        self._copies, self._changing, self._is_warm = SideCopies(device), Lock(), False
        self.loaded = torch.zeros((layers, 2 + 2 * num_experts), dtype=torch.int64, device=device)
        """For each layer what its last step has loaded: see `device_kernels.decide_and_gather`."""
        self.ring = RoutingRing(layers, num_experts, device)

    def routing(self) -> RingReader:
        """A reader of the experts that steps needed, from the last reset on."""
        return RingReader(self.ring, self.fields)

    def counts(self, layer: int) -> list[int]:
        """A layer's `fields` from the clock to the waves, as far as the host knows them; reads host memory only."""
        return torch.maximum(self.mirror[layer], self._found[layer])[: WAVES.value + 1].tolist()

    def catch_up(self) -> None:
        """Have the host know what a device that stands still has counted without showing it.

        Call it now and then, from one thread: if the device has shown nothing since the last call, its counts are
        read beside its work, and are exact if it does none. Before the first `reset` a graph may be being captured,
        and nothing is done.
        """
        with self._changing, torch.inference_mode():
            if not self._is_warm:
                return
            before, self._shown = self._shown, self.mirror.clone()
            if torch.equal(before, self._shown):
                self._copies.fetch(self._found, self.fields)

    def refresh_mirror(self) -> None:
        """Bring the mirror fully up to date; waits for the device, so not while a graph is captured."""
        self.mirror.copy_(self.fields)

    def reset(self) -> None:
        """Evict everything and count from zero, as after an engine's warm-up."""
        with self._changing:
            self.slot_of.fill_(NOT_RESIDENT)
            self.row_of.copy_(self.home_row_of)
            for counted in (self.last_used, self.fields):
                counted.zero_()
            self._set_slots(self.slots)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            for known in (self.mirror, self._found):
                known.zero_()
            self.ring.start_over()
            self._is_warm = True

    def set_slots(self, slots: int) -> None:
        """Give each layer so many slots, between two steps, and resize the arena; waits for the device.

        Growing keeps everything. Shrinking evicts and moves what `ResidentSet.resize` would.

        Raises:
            ConfigError: no expert could use a slot, or (`DeviceMemoryError`) the device has no room for more.
            UnsupportedError: the arena was not made to be resized so far. Nothing has changed.
        """
        if not 1 <= slots <= self.num_experts:
            raise ConfigError(
                f"{slots} expert slots for layers of {self.num_experts} experts; "
                f"set expert_slots between 1 and {self.num_experts}"
            )
        self._arena.check_resize(slots)
        if slots > self.slots:
            self._arena.resize(slots)
        elif slots < self.slots:
            self._shrink(slots)
            self._arena.resize(slots)
        self._set_slots(slots)

    def _shrink(self, slots: int) -> None:
        """Bring the page tables down to so many slots, and the bytes of what stays with them."""
        slot_of, last_used = self.slot_of.cpu().numpy(), self.last_used.cpu().numpy()
        shape = self._arena.shape
        for layer in range(len(slot_of)):
            change = resized_table(slot_of[layer], last_used[layer], slots)
            for _, from_slot, to_slot in change.moves:
                self._arena.move(shape.slot_row(layer, from_slot), shape.slot_row(layer, to_slot))
        self.slot_of.copy_(torch.from_numpy(slot_of))
        rows = shape.slot_row(0, 0) + self.slot_of.long() * shape.layers
        rows += torch.arange(shape.layers, device=self.device)[:, None]
        self.row_of.copy_(torch.where(self.slot_of >= 0, rows, self.home_row_of))

    def _set_slots(self, slots: int) -> None:
        self.slots = slots
        self.fields[:, SLOTS.value] = slots
