"""Paging inside CUDA graphs: the engine's Triton kernel over an arena, with every decision made on the device."""

from collections.abc import Sequence
from typing import Any

import torch

from wisp.engines.vllm.kernels import PartialOutputs, choice_outputs, fixed_tiles, of_rank, unpaged_tiles
from wisp.engines.vllm.padding import routed_as_first
from wisp.engines.vllm.patches.expert_assignment import translated
from wisp.engines.vllm.patches.second_product import before_second_product
from wisp.errors import ConfigError
from wisp.pager.arena import Arena, ArenaShape
from wisp.pager.device import DevicePager, look_up
from wisp.pager.device_state import DeviceState
from wisp.pager.routing_histogram import RoutingHistogram
from wisp.pager.store import ExpertStore
from wisp.pager.stream import ExpertStream, StreamShape
from wisp.pager.tails import TailCopies
from wisp.staging import GROUPS, group_experts, staging_rows


class InGraphPaging:
    """The arena, the page tables and the stream of one worker; `pagers[i]` pages its layer i."""

    def __init__(
        self,
        stores: Sequence[ExpertStore],
        slots: int,
        device: torch.device,
        *,
        planar: bool = False,
        graph_choices: int | None = None,
        least_slots: int | None = None,
        most_slots: int | None = None,
        broken: bool = False,
    ) -> None:
        """Lay out `slots` slots for each store; with `broken`, layer 0 gets the wrong experts' bytes.

        `planar` makes every tensor contiguous, for kernels that take no stride between experts. Then, and where the
        stores do not hold their experts in rows, the overflow of the widest step that is decided in place needs rows
        of its own: of a step of `graph_choices` tokens times top-k, or by default of one that needs every expert.

        The number of slots can later be anything from `least_slots` to `most_slots` (by default it stays), with every
        captured graph intact.
        """
        layout, experts = stores[0].layout, stores[0].num_experts
        staging = StreamShape(group_experts(layout.row_bytes), GROUPS)
        widest = experts if graph_choices is None else min(experts, graph_choices)
        overflows = planar or stores[0].rows is None
        rows = staging_rows(layout.row_bytes, overflow=widest - (least_slots or slots) if overflows else 0)
        self.least_slots = max(1, widest - rows) if overflows else 1
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
        self.stream = ExpertStream(self.pagers, self.state, staging)

    def routing_histogram(self) -> RoutingHistogram:
        """A histogram of the steps from now on, or from the last reset on; use it from after the warm-up on."""
        return RoutingHistogram(self.state.routing(), len(self.pagers), self.state.num_experts)

    def resize(self, slots: int) -> None:
        """Have so many slots in each layer, between two steps; waits for the device.

        Raises:
            ConfigError: no expert could use a slot, a step in a graph could overflow its rows, or the device has no
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


class InGraphKernel:
    """vLLM's Triton MoE kernel, told where each expert lies: in its slot, in an overflow row, or in the backing store.

    Up to `graph_tokens` tokens a step is decided, copied and computed without the host, so that a CUDA graph can
    hold it; experts beyond the slots are read over the link by the kernel itself, where it can. Wider steps, which no
    graph holds, stream the experts without slots past the kernel. Under expert parallelism all of this is of this
    rank's experts, by their places among them; what is on other ranks is left out just as the unpaged engine does.
    """

    def __init__(
        self,
        experts: Any,
        paging: InGraphPaging,
        layer: int,
        partial_outputs: PartialOutputs,
        graph_tokens: int,
        *,
        padding_is_routed: bool = False,
    ) -> None:
        """Compute layer number `layer`; `padding_is_routed` says whether ids name experts for a graph's padding."""
        self._experts, self._stream, self._pager = experts, paging.stream, paging.pagers[layer]
        self._partial_outputs, self._graph_tokens = partial_outputs, graph_tokens
        self._padding_is_routed = padding_is_routed
        self._apply, self._moe_sum = experts.apply, experts.moe_sum

    def run(self, **arguments: Any) -> None:
        """See `PagedKernel`; the tiles are those that the kernel would use with every expert present."""
        topk_ids: torch.Tensor = arguments["topk_ids"].contiguous()
        fits_a_graph = topk_ids.shape[0] <= self._graph_tokens
        if fits_a_graph and self._padding_is_routed:
            topk_ids = routed_as_first(topk_ids)
        arguments = {**arguments, "topk_ids": topk_ids}
        on_rank: torch.Tensor | None = arguments["expert_map"]
        rank_ids = topk_ids if on_rank is None else look_up(topk_ids, on_rank)
        with fixed_tiles(unpaged_tiles(self._experts, self._pager.num_experts, arguments)):
            if fits_a_graph:
                self._run_in_place(arguments, rank_ids)
            else:
                self._run_streamed(arguments, rank_ids)

    def _run_in_place(self, arguments: dict[str, Any], rank_ids: torch.Tensor) -> None:
        choice_rows = self._pager.page_head(rank_ids)
        with (
            translated(self._pager.num_experts, self._pager.rows_of, lambda _ids: choice_rows),
            before_second_product(self._pager.wait_for_tails),
        ):
            self._apply(**arguments)

    def _run_streamed(self, arguments: dict[str, Any], rank_ids: torch.Tensor) -> None:
        merged: torch.Tensor | None = None
        sorted_before: dict[Any, Any] = {}
        for row_of in self._stream.waves(self._pager.layer, rank_ids):
            outputs = self._choice_outputs(arguments, row_of, sorted_before)
            if merged is None:
                merged = self._partial_outputs.take(outputs)
            else:
                mine = self._pager.rows_of(rank_ids, row_of) >= 0
                torch.where(mine.unsqueeze(-1), outputs, merged, out=merged)
        self._moe_sum(merged, arguments["output"], *of_rank(arguments))

    def _choice_outputs(
        self, arguments: dict[str, Any], row_of: torch.Tensor, sorted_before: dict[Any, Any]
    ) -> torch.Tensor:
        """Run the kernel up to its reduction: [tokens, k, hidden], in the engine's workspace.

        Choices whose expert has no row in `row_of` come out as zeros.
        """

        def rows(experts: torch.Tensor) -> torch.Tensor:
            return self._pager.rows_of(experts, row_of)

        with translated(self._pager.num_experts, rows, rows, sorted_before):
            return choice_outputs(self._experts, self._apply, arguments)
