"""Whether every slot of a running engine holds the expert that the page tables say, byte by byte.

Where the device decides, the same of the overflow rows that the last layer's last step has used: those of other layers
have been used by the next ones since.

vLLM mixes a class of ours into its worker, and any client of the engine can then ask:

    wisp serve MODEL --expert-slots 8 --worker-extension-cls wisp.engines.vllm.integrity.IntegrityExtension
    curl -X POST URL/collective_rpc -d '{"method": "wisp_check_integrity"}'    # a server with VLLM_SERVER_DEV_MODE=1

vLLM answers between two steps, so a server under load may be asked as well as an idle one.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from wisp.engines.vllm import workers
from wisp.engines.vllm.in_graph_paging import InGraphPaging
from wisp.engines.vllm.paging import WorkerPaging
from wisp.errors import UnsupportedError
from wisp.pager.pager import ExpertPager
from wisp.pager.store import ByExpert
from wisp.resident import Wave

if TYPE_CHECKING:
    from vllm.config import VllmConfig


Rows = Sequence[torch.Tensor] | ByExpert


class IntegrityExtension:
    """For `--worker-extension-cls`. A worker must not have a method of the same name, hence the prefix."""

    vllm_config: "VllmConfig"
    """Of the worker."""

    def wisp_check_integrity(self) -> dict[str, Any]:
        """The `Integrity` of this worker, as plain values.

        Raises:
            UnsupportedError: nothing is paged here.
        """
        worker = workers.of_engine(self.vllm_config)
        if worker is None:
            raise UnsupportedError("this engine pages no experts; start it with `wisp serve MODEL --expert-slots N`")
        return asdict(check(list(paged_tables(worker))))


@dataclass(frozen=True)
class WrongSlot:
    """One expert that is not where it should be, or not what it should be."""

    layer: str
    expert: int
    slot: int | None
    """None for an expert that has no slot."""
    reason: str


@dataclass(frozen=True)
class Integrity:
    """What a check has looked at, and what it has found."""

    layers: int
    residents: int
    """Resident experts whose bytes were compared with the backing store's."""
    wrong: int
    wrong_slots: tuple[WrongSlot, ...]


@dataclass(frozen=True)
class PagedTable:
    """One layer as it stands."""

    layer: str
    slots: int
    slot_of: Mapping[int, int]
    """Of what is resident."""
    copies: Sequence[tuple[Rows, Rows]]
    """Pairs (by slot, by expert) of what must be equal where an expert is resident."""
    kernel_finds: Mapping[int, object]
    """Where the engine's kernel is sent for an expert."""
    kernel_should_find: Mapping[int, object]
    fills_slots_in_order: bool = False
    """Whether the residents have to fill the slots from the lowest up, so that their number says which are free."""
    overflow_row_of: Mapping[int, int] = field(default_factory=dict)
    """Of what has no slot."""
    overflow_copies: Sequence[tuple[Rows, Rows]] = ()
    """Pairs (by row, by expert) of what must be equal there."""


def check(tables: Sequence[PagedTable]) -> Integrity:
    """Look at every resident expert of every layer."""
    found = tuple(wrong for table in tables for wrong in _wrong_slots(table))
    return Integrity(len(tables), sum(len(table.slot_of) for table in tables), len(found), found)


def paged_tables(worker: WorkerPaging) -> Iterator[PagedTable]:
    """The layers of one worker, wherever they are decided, and those of its draft model."""
    if worker.draft is not None:
        yield from paged_tables(worker.draft)
    for place, pager in worker.pagers.items():
        yield host_table(worker.layers[place].name, pager)
    if worker.in_graph is not None:
        yield from device_tables([layer.name for layer in worker.layers], worker.in_graph)
    elif not worker.pagers:
        for layer in worker.layers:
            yield resident_table(layer.name, layer.module())


def resident_table(layer: str, module: Any) -> PagedTable:
    """A layer whose experts all have a slot, by their own numbers, and that is not paged."""
    tensors, store = module.expert_tensors.tensors, module.store
    slot_of = {expert: expert for expert in range(store.num_experts)}
    copies = [(tensors[name], by_expert) for name, by_expert in store.tensors.items()]
    return PagedTable(layer, store.num_experts, slot_of, copies, kernel_finds={}, kernel_should_find={})


def host_table(layer: str, pager: ExpertPager) -> PagedTable:
    """A layer that is decided on the host, between two steps."""
    slot_of = dict(pager.resident.slot_of)
    to_kernel = pager.slots_of(Wave(tuple(slot_of), (), ())).tolist()
    return PagedTable(
        layer,
        pager.resident.slots,
        slot_of,
        [(slots, pager.store.tensors[name]) for name, slots in pager.pool.tensors.items()],
        kernel_finds={expert: to_kernel[expert] for expert in slot_of},
        kernel_should_find=slot_of,
    )


def device_tables(layers: Sequence[str], paging: InGraphPaging) -> Iterator[PagedTable]:
    """The layers that are decided on the device; waits until it has done what it was given."""
    state, arena = paging.state, paging.arena
    if arena.device.type == "cuda":
        torch.cuda.synchronize(arena.device)
    slot_table, row_table = state.slot_of.tolist(), state.row_of.tolist()
    for pager, slots, rows in zip(paging.pagers, slot_table, row_table, strict=True):
        tensors, store = arena.tensors, pager.store
        slot_of = {expert: slot for expert, slot in enumerate(slots) if slot >= 0}
        of_slot = [arena.shape.slot_row(pager.layer, slot) for slot in range(arena.shape.slots)]
        # what the last step has found no slot for is sent to overflow rows, in order, until the next one
        passing = [each for each, row in enumerate(rows) if 0 <= row < arena.shape.staging_rows and each not in slot_of]
        overflow = {expert: row for row, expert in enumerate(passing)}
        homes = dict(enumerate(arena.home_rows(store).tolist()))
        of_residents = {expert: of_slot[slot] for expert, slot in slot_of.items() if slot < len(of_slot)}
        is_last = pager.layer == len(paging.pagers) - 1
        yield PagedTable(
            layers[pager.layer],
            arena.shape.slots,
            slot_of,
            [([by_row[row] for row in of_slot], store.tensors[name]) for name, by_row in tensors.items()],
            kernel_finds=dict(enumerate(rows)),
            kernel_should_find=homes | overflow | of_residents,
            fills_slots_in_order=True,
            overflow_row_of=overflow if is_last else {},
            overflow_copies=[(by_row, store.tensors[name]) for name, by_row in tensors.items()],
        )


def _wrong_slots(table: PagedTable) -> Iterator[WrongSlot]:
    sharers = Counter(table.slot_of.values())
    for expert, slot in sorted(table.slot_of.items()):
        if not 0 <= slot < table.slots:
            yield WrongSlot(table.layer, expert, slot, f"the layer has {table.slots} slots")
            continue
        if sharers[slot] > 1:
            yield WrongSlot(table.layer, expert, slot, f"{sharers[slot]} experts are said to be in it")
        if table.fills_slots_in_order and slot >= len(table.slot_of):
            yield WrongSlot(table.layer, expert, slot, f"{len(table.slot_of)} experts leave a slot below it free")
        if not all(_same_bytes(by_slot[slot], by_expert[expert]) for by_slot, by_expert in table.copies):
            yield WrongSlot(table.layer, expert, slot, "its bytes are not the backing store's")
    for expert, row in sorted(table.overflow_row_of.items()):
        if not all(_same_bytes(by_row[row], by_expert[expert]) for by_row, by_expert in table.overflow_copies):
            yield WrongSlot(table.layer, expert, None, f"its bytes in overflow row {row} are not the backing store's")
    for expert, right in sorted(table.kernel_should_find.items()):
        if table.kernel_finds[expert] != right:
            reason = f"the kernel is sent to {table.kernel_finds[expert]} instead of {right}"
            yield WrongSlot(table.layer, expert, table.slot_of.get(expert), reason)


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit by bit, wherever they are: NaN equals itself, and 0.0 is not -0.0."""
    return torch.equal(*(tensor.cpu().contiguous().view(-1).view(torch.uint8) for tensor in (one, other)))
