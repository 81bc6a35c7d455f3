"""A stream hands every expert to the kernel from a row that holds it, whatever is resident; memory is a plain table."""

from types import SimpleNamespace

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from wisp.pager.arena import ArenaShape
from wisp.pager.stream import ExpertStream
from wisp.pager.stream_layout import StreamShape, lay_out


class Memory:
    """Layers of experts of which each row of the arena holds one at most: (layer, expert)."""

    def __init__(self, layers, experts, slots, shape, residents):
        self.rows = {}
        self.shape = ArenaShape(layers, slots, shape.rows)
        self.slots, self.experts = slots, experts
        self.slot_of = torch.full((layers, experts), -1)
        self.row_of = torch.full((layers, experts), -1)
        self.home_row_of = torch.full((layers, experts), -1)
        for layer, chosen in enumerate(residents):
            for slot, expert in enumerate(chosen):
                self.slot_of[layer, expert] = slot
                self.row_of[layer, expert] = row = self.shape.slot_row(layer, slot)
                self.rows[row] = (layer, expert)
        arena = SimpleNamespace(shape=self.shape, device=torch.device("cpu"), reaches=lambda _: False)
        self.stream = ExpertStream([Pager(self, arena, layer) for layer in range(layers)], self, shape)

    def step(self):
        """One step; returns for each layer how many groups of the next ones are copied while it computes."""
        ahead = []
        for layer in range(len(self.slot_of)):
            computed = []
            for row_of in self.stream.waves(layer, torch.empty(0, dtype=torch.int64)):
                copied_ahead = self.stream._step.issued - self.stream._step.of_layer[layer].stop
                for expert, row in enumerate(row_of.tolist()):
                    if row >= 0:
                        assert self.rows[row] == (layer, expert)
                        computed.append(expert)
            assert sorted(computed) == list(range(self.experts))
            ahead.append(copied_ahead)
        return ahead


class Pager:
    """In place of `DevicePager`: it copies into the table."""

    def __init__(self, memory, arena, layer):
        self.memory, self.arena, self.layer, self.store = memory, arena, layer, None

    def touch(self, topk_ids, **counted):
        """Nothing is counted."""

    def copy(self, experts, rows):
        """Each of `experts` to its row."""
        for expert, row in zip(experts.tolist(), rows.tolist(), strict=True):
            self.memory.rows[row] = (self.layer, expert)


@st.composite
def memories(draw):
    layers, experts, size = draw(st.integers(1, 4)), draw(st.integers(1, 13)), draw(st.integers(1, 5))
    slots, whole = draw(st.integers(1, experts)), draw(st.booleans())
    groups = -(-(experts - slots) // size) + draw(st.integers(0, 2)) if whole else draw(st.integers(2, 4))
    chosen = st.permutations(range(experts)).flatmap(lambda order: st.integers(0, slots).map(lambda n: order[:n]))
    residents = draw(st.lists(chosen, min_size=layers, max_size=layers))
    return Memory(layers, experts, slots, StreamShape(size, max(1, groups), whole=whole), residents)


@given(memories())
def test_every_expert_is_computed_once_from_a_row_that_holds_it(memory):
    before = memory.slot_of.clone()
    for _ in range(2):
        memory.step()
        for layer, table in enumerate(memory.slot_of.tolist()):
            held = {slot: expert for expert, slot in enumerate(table) if slot >= 0}
            assert sorted(held) == list(range(memory.slots)), "free slots are filled"
            assert all(memory.rows[memory.shape.slot_row(layer, slot)] == (layer, held[slot]) for slot in held)
        assert (memory.slot_of[before >= 0] == before[before >= 0]).all(), "residents stay in their slots"


def test_the_next_layer_s_experts_are_copied_while_a_whole_layer_computes():
    """Five groups a layer, and rows for two more."""
    assert Memory(3, 16, 6, StreamShape(2, 5 + 2, whole=True), [range(6)] * 3).step() == [2, 2, 0]


@given(memories())
@example(Memory(1, 1, 1, StreamShape(1, 2), [[]]))
def test_a_layout_says_the_same_by_group_and_by_table(memory):
    layout = lay_out(memory.shape, memory.stream.shape, memory.slots, memory.slot_of.numpy(), memory.row_of.numpy())
    for index, group in enumerate(layout.groups):
        count = len(group.experts)
        assert index in layout.of_layer[group.layer]
        assert 0 < count <= memory.stream.shape.group_experts
        assert layout.pairs[index, :, :count].tolist() == [group.experts, group.rows]
        table = layout.row_of[group.layer if memory.stream.shape.whole else index]
        assert table[group.experts].tolist() == group.rows
        if not memory.stream.shape.whole:
            assert (table >= 0).sum() == count
