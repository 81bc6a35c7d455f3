"""A backing store takes the memory of its experts and no more, keeps them apart, and loads a slot whole."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wisp.pager.pool import SlotPool
from wisp.pager.store import HostStore

SHAPES = st.dictionaries(
    st.sampled_from(["w13_weight", "w2_weight", "w13_bias", "scale"]),
    st.tuples(
        st.lists(st.integers(1, 9), min_size=1, max_size=2),
        st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.uint8]),
    ),
    min_size=1,
)


def make_like(num_experts, shapes):
    return {name: torch.empty(num_experts, *shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}


def fill(store):
    """Give each tensor of each expert a value of its own."""
    values = {}
    for index, (name, tensor) in enumerate(store.tensors.items()):
        for expert in range(store.num_experts):
            values[name, expert] = 1 + expert + store.num_experts * index
            tensor[expert] = values[name, expert]
    return values


@given(num_experts=st.integers(1, 12), shapes=SHAPES)
def test_experts_share_no_byte(num_experts, shapes):
    like = make_like(num_experts, shapes)
    store = HostStore(like)
    values = fill(store)
    assert store.num_experts == num_experts
    for name, tensor in store.tensors.items():
        assert (tensor.shape, tensor.dtype) == (like[name].shape, like[name].dtype)
        for expert in range(num_experts):
            assert tensor[expert].is_contiguous()
            assert (tensor[expert] == values[name, expert]).all()
    assert store.expert_bytes == sum(tensor[0].nbytes for tensor in like.values())


@given(num_experts=st.integers(1, 12), shapes=SHAPES)
def test_every_experts_tensor_is_aligned_for_a_kernel(num_experts, shapes):
    store = HostStore(make_like(num_experts, shapes))
    for tensor in store.tensors.values():
        assert all(tensor[expert].data_ptr() % 64 == 0 for expert in range(num_experts))


def test_the_size_is_not_rounded_up_to_a_power_of_two():
    like = {"w13": torch.empty(33, 2 * 48, 1024, dtype=torch.bfloat16), "w2": torch.empty(33, 1024, 48)}
    exact = sum(tensor.nbytes for tensor in like.values())
    assert exact <= HostStore(like).nbytes < exact * 1.01


def test_loading_a_checkpoint_into_the_tensors_needs_no_second_copy():
    store = HostStore({"w": torch.empty(4, 8)})
    parameter = torch.nn.Parameter(store.tensors["w"], requires_grad=False)
    parameter[2].copy_(torch.arange(8.0))
    assert torch.equal(store.tensors["w"][2], torch.arange(8.0))


@pytest.mark.parametrize("shapes", [{"w": (3, 4), "v": (4, 4)}, {}])
def test_tensors_that_are_not_of_one_layer_are_refused(shapes):
    with pytest.raises(ValueError, match="disagree on the number of experts"):
        HostStore({name: torch.empty(shape) for name, shape in shapes.items()})


@given(num_experts=st.integers(1, 6), shapes=SHAPES, data=st.data())
def test_a_slot_holds_the_expert_that_was_loaded_last(num_experts, shapes, data):
    store = HostStore(make_like(num_experts, shapes))
    values = fill(store)
    slots = data.draw(st.integers(1, num_experts))
    pool = SlotPool(store, slots, "cpu")
    held = {}
    for _ in range(8):
        expert, slot = data.draw(st.integers(0, num_experts - 1)), data.draw(st.integers(0, slots - 1))
        pool.load(expert, slot)
        held[slot] = expert
    for name, frame in pool.tensors.items():
        assert frame.shape == (slots, *store.tensors[name].shape[1:])
        for slot in range(slots):
            assert (frame[slot] == (values[name, held[slot]] if slot in held else 0)).all()
    assert pool.nbytes == slots * store.expert_bytes
