"""A backing store takes the memory of its experts and no more, keeps them apart, and loads a slot whole."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import ConfigError, HostMemoryError
from wisp.pager.host_memory import HostRegion
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


class Runtime:
    """The CUDA runtime of a machine that refuses, or grants, to page-lock."""

    def __init__(self, failure: int) -> None:
        self.failure, self.registered, self.unregistered = failure, [], []

    def cudaHostRegister(self, address, nbytes, flags):  # noqa: N802
        self.registered.append((address, nbytes))
        return self.failure

    def cudaHostUnregister(self, address):  # noqa: N802
        self.unregistered.append(address)


@pytest.fixture
def runtime(monkeypatch):
    def install(failure):
        runtime = Runtime(failure)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
        return runtime

    return install


LIKE = {"w": torch.empty(4, 700, dtype=torch.bfloat16)}


def test_a_refused_page_lock_is_an_error_where_it_is_required(runtime):
    runtime(2)
    with pytest.raises(
        HostMemoryError, match=r"refused to page-lock .* \(CUDA error 2\).*ulimit -l.*page_lock to auto"
    ):
        HostStore(LIKE, page_lock="require", device="cuda")


def test_a_refused_page_lock_is_a_warning_otherwise(runtime, caplog):
    runtime(801)
    store = HostStore(LIKE, page_lock="auto", device="cuda")
    assert not store.page_locked
    assert "refused to page-lock" in caplog.text
    assert "slower" in caplog.text
    fill(store)


def test_the_whole_store_is_page_locked_in_one_piece_and_given_back(runtime):
    granted = runtime(0)
    store = HostStore(LIKE, page_lock="require", device="cuda")
    assert store.page_locked
    ((address, nbytes),) = granted.registered
    tensor = store.tensors["w"]
    assert address <= tensor.data_ptr()
    assert tensor[-1].data_ptr() + tensor[-1].nbytes <= address + nbytes
    assert not granted.unregistered
    fill(store)
    del store, tensor
    assert granted.unregistered == [address]


@pytest.mark.parametrize(("page_lock", "device"), [("off", "cuda"), ("auto", "cpu"), ("require", "cpu")])
def test_nothing_is_page_locked_that_no_gpu_reads(runtime, page_lock, device):
    untouched = runtime(0)
    assert not HostStore(LIKE, page_lock=page_lock, device=device).page_locked
    assert not untouched.registered


def test_an_unknown_page_lock_is_refused():
    with pytest.raises(ConfigError, match="auto, require, off, not 'maybe'"):
        HostStore(LIKE, page_lock="maybe")


def test_memory_that_cannot_be_mapped_is_an_error():
    with pytest.raises(HostMemoryError, match="cannot map"):
        HostRegion(1 << 60, alignment=4096, page_lock="off", device=torch.device("cpu"))
