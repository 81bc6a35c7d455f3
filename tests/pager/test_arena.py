"""An arena lays out rows as its shape says, in one piece an expert or in one piece a tensor."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import UnsupportedError
from wisp.pager.arena import Arena, ArenaShape
from wisp.pager.store import HostStore

SHAPES = st.dictionaries(
    st.sampled_from(["w13_weight", "w2_weight", "w13_bias", "scale"]),
    st.tuples(
        st.lists(st.integers(0, 9), max_size=2).map(tuple),
        st.sampled_from([torch.float32, torch.int32, torch.int64]),
    ),
    min_size=1,
).filter(lambda shapes: any(0 not in shape for shape, _ in shapes.values()))


def make_store(experts, shapes):
    return HostStore({name: torch.empty(experts, *shape, dtype=dtype) for name, (shape, dtype) in shapes.items()})


@given(layers=st.integers(1, 3), slots=st.integers(1, 4), staging=st.integers(0, 3))
def test_one_more_slot_in_every_layer_is_a_piece_at_the_end(layers, slots, staging):
    shape, larger = ArenaShape(layers, slots, staging), ArenaShape(layers, slots + 1, staging)
    places = list(range(staging))
    places += [shape.slot_row(layer, slot) for slot in range(slots) for layer in range(layers)]
    assert places == list(range(shape.rows))
    assert [larger.slot_row(layer, slots) for layer in range(layers)] == list(range(shape.rows, larger.rows))


@given(shapes=SHAPES, slots=st.integers(1, 4))
def test_a_planar_arena_keeps_each_tensor_in_one_aligned_piece(shapes, slots):
    store = make_store(4, shapes)
    arena = Arena(ArenaShape(2, slots, 1), store.layout, "cpu", planar=True)
    for name, tensor in arena.tensors.items():
        assert (tensor.shape, tensor.dtype) == ((1 + 2 * slots, *shapes[name][0]), shapes[name][1])
        assert tensor.is_contiguous()
        assert tensor.numel() == 0 or tensor.data_ptr() % 256 == 0
        tensor.view(torch.int32).fill_(7)
    assert arena.home_rows(store).tolist() == [-1] * 4


@given(shapes=SHAPES)
def test_an_interleaved_arena_reaches_the_store_by_row(shapes):
    store = make_store(4, shapes)
    arena = Arena(ArenaShape(2, 1, 1), store.layout, "cpu")
    for expert, row in enumerate(arena.home_rows(store).tolist()):
        assert arena.rows.data_ptr() + row * store.layout.row_bytes == store.rows[expert].data_ptr()


@pytest.mark.parametrize("planar", [False, True])
def test_a_resize_keeps_rows_where_they_are(planar):
    store = make_store(8, {"weight": ((8,), torch.float32), "scale": ((), torch.float32)})
    arena = Arena(ArenaShape(2, 2, 3), store.layout, "cpu", planar=planar, most_slots=6)
    addresses = [tensor.data_ptr() for tensor in arena.tensors.values()]
    for tensor in arena.tensors.values():
        tensor[: arena.shape.rows].copy_(
            torch.arange(7.0).view(7, *[1] * (tensor.ndim - 1)).expand(7, *tensor.shape[1:])
        )
    for slots, rows in ((6, 15), (1, 5), (3, 9)):
        arena.resize(slots)
        assert (arena.shape.slots, arena.shape.rows) == (slots, rows)
        assert [tensor.data_ptr() for tensor in arena.tensors.values()] == addresses
        assert all(tensor.shape[0] == 15 for tensor in arena.tensors.values())
        assert all((tensor[row] == row).all() for tensor in arena.tensors.values() for row in range(5))
    with pytest.raises(UnsupportedError, match=r"cannot become .* at most"):
        arena.resize(7)
    assert arena.shape.slots == 3


def test_an_arena_of_fixed_size_says_so_before_anything_is_evicted():
    pytest.importorskip("triton")
    from wisp.pager.device_state import DeviceState

    store = make_store(8, {"weight": ((8,), torch.float32)})
    arena = Arena(ArenaShape(1, 4, 3), store.layout, "cpu")
    state = DeviceState(arena, [store])
    state.slot_of[0, :4] = torch.arange(4, dtype=torch.int32)
    for slots in (3, 5):
        with pytest.raises(UnsupportedError, match="of a fixed size"):
            state.set_slots(slots)
    assert (state.slots, arena.shape.slots, state.slot_of[0].max().item()) == (4, 4, 3)
    state.set_slots(4)


def test_a_planar_tensor_of_broken_words_is_refused_by_name():
    layout = make_store(4, {"weight": ((8,), torch.float32), "scale": ((), torch.bfloat16)}).layout
    Arena(ArenaShape(1, 2, 0), layout, "cpu")
    with pytest.raises(UnsupportedError, match="scale takes 2 bytes of an expert"):
        Arena(ArenaShape(1, 2, 0), layout, "cpu", planar=True)


def test_a_step_that_could_overflow_its_rows_is_refused():
    pytest.importorskip("triton")
    from wisp.errors import WorkingSetTooLargeError
    from wisp.pager.device import DevicePager
    from wisp.pager.device_state import DeviceState

    store = make_store(16, {"weight": ((8,), torch.float32)})
    arena = Arena(ArenaShape(1, 4, 3), store.layout, "cpu", planar=True)
    pager = DevicePager(0, DeviceState(arena, [store]), store, arena, link_bytes_per_second=1e9)
    with pytest.raises(WorkingSetTooLargeError) as caught:
        pager.page(torch.zeros((2, 4), dtype=torch.int32))
    assert (caught.value.need, caught.value.slots) == (8, 7)
