"""What the layers of a worker share where the device decides: the arena, the page tables and the stream."""

from collections.abc import Sequence

import torch

from wisp.errors import ConfigError
from wisp.pager.arena import Arena, ArenaShape
from wisp.pager.device import DevicePager
from wisp.pager.device_state import DeviceState
from wisp.pager.routing_histogram import RoutingHistogram
from wisp.pager.store import ExpertStore
from wisp.pager.stream import ExpertStream
from wisp.pager.stream_layout import StreamShape
from wisp.pager.tails import TailCopies
from wisp.staging import GROUPS, group_experts, planar_rows, staging_rows


class InGraphPaging:
    """The arena, the page tables and the stream of one worker; `pagers[i]` pages its layer i."""

    def __init__(
        self,
        stores: Sequence[ExpertStore],
        slots: int,
        device: torch.device,
        *,
        planar: bool = False,
        least_slots: int | None = None,
        most_slots: int | None = None,
        broken: bool = False,
    ) -> None:
        """Lay out `slots` slots for each store; with `broken`, layer 0 gets the wrong experts' bytes.

        `planar` makes every tensor contiguous, for kernels that take no stride between experts. Then, and where the
        stores do not hold their experts in rows, what a step needs beyond the slots needs rows of its own, all experts
        at the most; in a planar arena the next layer's first experts too.

        The number of slots can later be anything from `least_slots` to `most_slots` (by default it stays), with every
        captured graph intact.
        """
        layout, experts = stores[0].layout, stores[0].num_experts
        size, least = group_experts(layout.row_bytes), least_slots or slots
        in_files = stores[0].rows is None
        if planar:
            rows = planar_rows(layout.row_bytes, experts=experts, slots=least)
        else:
            rows = staging_rows(layout.row_bytes, overflow=experts - least if in_files else 0)
        self.least_slots = max(1, experts - rows) if planar or in_files else 1
        shape = ArenaShape(len(stores), slots, rows)
        self.arena = Arena(shape, layout, device, planar=planar, most_slots=most_slots)
        self.state = DeviceState(self.arena, stores)
        tail_start = layout.row_bytes if planar else layout.tail_start(_of_second_product)
        tails = TailCopies(tail_start, device) if tail_start < layout.row_bytes else None
        link = self.arena.link_bytes_per_second(stores[0])
        self.pagers = [
            DevicePager(
                layer,
                self.state,
                store,
                self.arena,
                link_bytes_per_second=link,
                source=_rotated(store, self.arena) if broken and layer == 0 else None,
                tails=tails,
            )
            for layer, store in enumerate(stores)
        ]
        staging = StreamShape(size, rows // size if planar else GROUPS, whole=planar)
        self.stream = ExpertStream(self.pagers, self.state, staging)

    def routing_histogram(self) -> RoutingHistogram:
        """A histogram of the steps from now on, or from the last reset on; use it from after the warm-up on."""
        return RoutingHistogram(self.state.routing(), len(self.pagers), self.state.num_experts)

    def resize(self, slots: int) -> None:
        """Have so many slots in each layer, between two steps; waits for the device.

        Raises:
            ConfigError: no expert could use a slot, a step could overflow its rows, or the device has no
            room (`DeviceMemoryError`). UnsupportedError: the arena was not made to become so large.
        """
        if not self.least_slots <= slots <= self.state.num_experts:
            raise ConfigError(
                f"{slots} expert slots cannot be had here; set expert_slots between {self.least_slots} and "
                f"{self.state.num_experts}"
            )
        self.state.set_slots(slots)


def _of_second_product(name: str) -> bool:
    """Whether vLLM's kernel needs this tensor of an expert only for its second product."""
    return name.startswith("w2")


def _rotated(store: ExpertStore, arena: Arena) -> torch.Tensor:
    """What `DevicePager` copies from, with each expert's bytes in the place of the next one's."""
    if not arena.reaches(store):
        return store.addresses().roll(1, dims=0)
    assert store.rows is not None
    rows = torch.empty(store.rows.shape, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    return rows.copy_(store.rows.roll(1, dims=0))
