"""Host memory is provided and page-locked for a GPU, at once or while it is written, and refusals are told."""

import ctypes
import mmap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from wisp.errors import ConfigError, HostMemoryError
from wisp.pager import host_memory
from wisp.pager.host_memory import HostRegion
from wisp.pager.store import HostStore


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


def fill(store, number=0):
    store.tensors["w"].copy_(torch.arange(4 * 700).reshape(4, 700) % 200 + number)


def holds(store, number=0):
    """Whether it still has what `fill` wrote."""
    return torch.equal(store.tensors["w"].long(), torch.arange(4 * 700).reshape(4, 700) % 200 + number)


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


@pytest.fixture
def second_gpu(monkeypatch):
    """As if the second GPU were this thread's; a new thread's is the first. `gpu.here` is the thread's own."""
    gpu = threading.local()
    gpu.here = 1

    @contextmanager
    def device(index):
        gpu.here = index
        yield

    monkeypatch.setattr(torch.cuda, "current_device", lambda: gpu.here)
    monkeypatch.setattr(torch.cuda, "device", device)
    return gpu


def test_a_store_is_written_while_another_thread_locks_it(runtime, second_gpu):
    granted, may_lock = runtime(0), threading.Event()
    register = granted.cudaHostRegister
    gpus = []

    def register_at_last(*args):
        assert may_lock.wait(30)
        gpus.append(second_gpu.here)
        return register(*args)

    granted.cudaHostRegister = register_at_last
    with ThreadPoolExecutor(2) as threads:
        stores = [HostStore(LIKE, page_lock="require", device="cuda", lock_later=True) for _ in range(3)]
        for number, store in enumerate(stores):
            store.lock_by(threads)
            fill(store, number)
        assert not granted.registered, "nobody has waited for it"
        may_lock.set()
        assert all(store.page_locked for store in stores)
    for number, store in enumerate(stores):
        assert holds(store, number)
    assert {address for address, _ in granted.registered} == {store.rows.data_ptr() for store in stores}
    assert len(granted.registered) == 3
    assert gpus == [1, 1, 1], "the GPU of the thread that made them"


def test_what_a_lock_in_the_background_met_is_told_to_who_asks(runtime, second_gpu):
    runtime(2)
    with ThreadPoolExecutor(1) as threads:
        store = HostStore(LIKE, page_lock="require", device="cuda", lock_later=True)
        store.lock_by(threads)
        for _ in range(2):
            with pytest.raises(HostMemoryError, match="refused to page-lock"):
                store.page_locked  # noqa: B018


def test_no_memory_is_taken_for_a_store_that_is_dropped_before_its_turn(runtime, second_gpu):
    """As the stores of an engine whose loading fails are, while the first of them is being locked."""
    granted, may_lock, is_locking = runtime(0), threading.Event(), threading.Event()
    register = granted.cudaHostRegister

    def register_at_last(*args):
        is_locking.set()
        assert may_lock.wait(30)
        return register(*args)

    granted.cudaHostRegister = register_at_last
    with ThreadPoolExecutor(1) as threads:
        stores = [HostStore(LIKE, page_lock="require", device="cuda", lock_later=True) for _ in range(3)]
        for store in stores:
            store.lock_by(threads)
        first, _, last = (store.rows.data_ptr() for store in stores)
        assert is_locking.wait(30)
        store = None
        del stores[1]
        may_lock.set()
        assert all(store.page_locked for store in stores)
    assert [address for address, _ in granted.registered] == [first, last]


def test_a_store_that_nobody_was_to_lock_is_locked_when_that_is_asked(runtime):
    granted = runtime(0)
    store = HostStore(LIKE, page_lock="require", device="cuda", lock_later=True)
    fill(store)
    assert not granted.registered
    for _ in range(2):
        assert store.page_locked
    assert len(granted.registered) == 1
    assert holds(store)


@pytest.mark.parametrize("first", [0, 1, 4096, 5000])
def test_pages_are_provided_and_keep_what_is_written(first):
    mapped = mmap.mmap(-1, 6 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = torch.frombuffer(mapped, dtype=torch.uint8)
    memory[first] = 7
    assert resident_pages(memory) < 600
    if not host_memory.advise(memory[first:].data_ptr(), 1, host_memory.POPULATE_WRITE):
        pytest.skip("a kernel before 5.14")
    host_memory.provide(memory[first:])
    assert resident_pages(memory) == (6 << 20) // 4096 - first // 4096
    assert memory[first] == 7
    assert memory.sum() == 7


def test_a_kernel_that_cannot_provide_has_the_memory_written_before_anybody_else_may(runtime, second_gpu, monkeypatch):
    runtime(0)
    monkeypatch.setattr(host_memory, "advise", lambda *_: False)
    with ThreadPoolExecutor(1) as threads:
        store = HostStore(LIKE, device="cuda", lock_later=True)
        assert resident_pages(store.rows.view(-1)) == store.nbytes // 4096
        fill(store)
        store.lock_by(threads)
        assert store.page_locked
    assert holds(store)


def resident_pages(memory):
    """How many whole pages of it the system has provided."""
    pages = memory.numel() // 4096
    seen = (ctypes.c_ubyte * pages)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(memory.numel()), seen) == 0
    return sum(page & 1 for page in seen)


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
