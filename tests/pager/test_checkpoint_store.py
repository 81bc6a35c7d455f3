"""A store in files loads what a store in memory loads, takes no memory of its own, and maps and locks a file once."""

import os
import random

import pytest
import torch
from file_store import write_store
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import CheckpointError, HostMemoryError, UnsupportedError
from wisp.pager.arena import Arena, ArenaShape
from wisp.pager.checkpoint_store import CheckpointStore, FilePlace
from wisp.pager.mapped_file import MappedFile
from wisp.pager.pool import SlotPool
from wisp.pager.store import HostStore

LIKE = {"w13": torch.empty(5, 6, 8, dtype=torch.bfloat16), "w2": torch.empty(5, 8, 3, dtype=torch.bfloat16)}


def as_bytes(tensor):
    return tensor.reshape(-1).view(torch.uint8).tolist()


def in_memory(like=LIKE):
    store = HostStore(like)
    store.rows.random_(0, 256)
    return store


@given(seed=st.integers(0, 99), gap=st.sampled_from([1, 2, 4]))
def test_every_way_to_read_an_expert_gives_the_bytes_in_memory(tmp_path_factory, seed, gap):
    random.seed(seed)
    memory = in_memory()
    store = write_store(memory, tmp_path_factory.mktemp("store") / "file", gap=gap)
    pool, whole = SlotPool(store, 2, "cpu"), store.on_device(torch.device("cpu"))
    assert (store.num_experts, store.expert_bytes, store.nbytes) == (5, 144, 5 * 144)
    for expert in range(5):
        pool.load(expert, 1)
        for name, tensor in memory.tensors.items():
            right = as_bytes(tensor[expert])
            assert store.tensors[name].shape == tensor.shape
            assert as_bytes(store.tensors[name][expert]) == as_bytes(pool.tensors[name][1]) == right
            assert as_bytes(whole[name][expert]) == right


def test_what_is_loaded_is_laid_out_on_its_way(tmp_path):
    memory = in_memory()
    store = write_store(memory, tmp_path / "file", arrange=lambda raw, target: target.copy_(raw.flip(0)))
    pool = SlotPool(store, 1, "cpu")
    pool.load(3, 0)
    for name, tensor in memory.tensors.items():
        assert as_bytes(pool.tensors[name][0]) == as_bytes(tensor[3].flip(0)) == as_bytes(store.tensors[name][3])


def test_a_file_is_mapped_once_however_it_is_called(tmp_path):
    (tmp_path / "file").write_bytes(b"12345678")
    (tmp_path / "link").symlink_to("file")
    first = MappedFile.of(tmp_path / "file")
    assert MappedFile.of(tmp_path / "link") is first
    assert bytes(first.bytes.tolist()) == b"12345678"


@pytest.mark.parametrize("content", [None, b""])
def test_a_file_that_cannot_be_mapped_is_refused_by_name(tmp_path, content):
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(CheckpointError, match="file cannot be mapped as a backing store"):
        MappedFile.of(tmp_path / "file")


def write_into(path, start=0, content=b"other"):
    """As a program does that keeps the file: its size stays, its time does not."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)
    before = path.stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # a clock may be too coarse to tell


@pytest.mark.parametrize("read", ["load", "on_device", "tensors", "check"])
def test_a_file_that_is_cut_short_is_an_error_and_ends_no_process(tmp_path, read):
    store = write_store(in_memory(), tmp_path / "file")
    os.truncate(tmp_path / "file", 0)
    reads = {
        "load": lambda: SlotPool(store, 1, "cpu").load(2, 0),
        "on_device": lambda: store.on_device(torch.device("cpu")),
        "tensors": lambda: store.tensors["w2"][4],
        "check": store.check,
    }
    with pytest.raises(CheckpointError, match=r"file was written to .*\(it had \d+ bytes and has 0\); start again"):
        reads[read]()


def test_a_file_that_is_written_into_is_an_error_in_place_of_another_expert(tmp_path):
    store = write_store(in_memory(), tmp_path / "file")
    write_into(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"file was written to .*of \d+ bytes, at another time than before"):
        SlotPool(store, 1, "cpu").load(0, 0)


def test_no_store_is_made_of_a_file_that_was_written_to_since_it_was_mapped(tmp_path, monkeypatch):
    runtime = Runtime(0)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    store = write_store(in_memory(), tmp_path / "file")
    write_into(tmp_path / "file")
    with pytest.raises(CheckpointError, match="was written to"):
        CheckpointStore(store.layout, store.segments, store._places, device="cuda")
    assert not runtime.registered


def test_who_comes_later_maps_what_was_written(tmp_path):
    (tmp_path / "file").write_bytes(b"12345678")
    first = MappedFile.of(tmp_path / "file")
    write_into(tmp_path / "file", 8, b"9")
    second = MappedFile.of(tmp_path / "file")
    assert bytes(second.bytes.tolist()) == b"123456789"
    second.check()
    with pytest.raises(CheckpointError, match="it had 8 bytes and has 9"):
        first.check()


@pytest.mark.parametrize("change", ["rename", "remove"])
def test_a_file_that_is_replaced_under_its_name_is_read_on(tmp_path, change):
    memory = in_memory()
    store = write_store(memory, tmp_path / "file")
    if change == "rename":
        (tmp_path / "new").write_bytes(b"another checkpoint")
        (tmp_path / "new").rename(tmp_path / "file")
    else:
        (tmp_path / "file").unlink()
    for expert in range(5):
        assert as_bytes(store.tensors["w13"][expert]) == as_bytes(memory.tensors["w13"][expert])


def test_a_file_that_nobody_reads_any_more_is_closed(tmp_path):
    store = write_store(in_memory(), tmp_path / "file")
    (descriptor,) = {place.file._descriptor for pieces in store._places for place in pieces}
    os.fstat(descriptor)
    del store
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_file_that_ends_before_its_experts_is_refused(tmp_path):
    memory = in_memory()
    (tmp_path / "file").write_bytes(bytes(200))
    file = MappedFile.of(tmp_path / "file")
    places = [[FilePlace(file, 0), FilePlace(file, 100)], [FilePlace(file, 100), FilePlace(file, 160)]]
    with pytest.raises(CheckpointError, match="ends at byte 200, but w2 of an expert reaches to 208"):
        CheckpointStore(memory.layout, memory.segments, places)


def test_pieces_that_begin_between_words_are_for_the_host_alone(tmp_path):
    random.seed(0)
    store = write_store(in_memory(), tmp_path / "file", gap=2)
    arena = Arena(ArenaShape(1, 2, 3), store.layout, "cpu")
    with pytest.raises(UnsupportedError, match=r"multiple of 4 bytes.* set backing_store to memory"):
        arena.places(store)


def test_pieces_that_end_between_words_are_for_the_host_alone(tmp_path):
    memory = in_memory({"w2": torch.empty(2, 3, 3, dtype=torch.bfloat16)})  # 18 bytes, 20 apart
    (tmp_path / "file").write_bytes(bytes(40))
    file = MappedFile.of(tmp_path / "file")
    places = [[FilePlace(file, 0)], [FilePlace(file, 20)]]
    store = CheckpointStore(memory.layout, memory.segments, places)
    arena = Arena(ArenaShape(1, 2, 3), store.layout, "cpu")
    with pytest.raises(UnsupportedError, match=r"end at no multiple of 4 bytes.* set backing_store to memory"):
        arena.places(store)


class Runtime:
    """The CUDA runtime of a machine that refuses, or grants, to page-lock."""

    def __init__(self, failure):
        self.failure, self.registered, self.unregistered = failure, [], []

    def cudaHostRegister(self, address, nbytes, flags):  # noqa: N802
        self.registered.append((address, nbytes, flags))
        return self.failure

    def cudaHostUnregister(self, address):  # noqa: N802
        self.unregistered.append(address)


def test_stores_in_one_file_page_lock_it_once_for_reading_and_give_it_back(tmp_path, monkeypatch):
    granted = Runtime(0)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: granted)
    stores = [write_store(in_memory(), tmp_path / "file", page_lock="require", device="cuda")]
    file = MappedFile.of(tmp_path / "file")
    stores.append(CheckpointStore(stores[0].layout, stores[0].segments, stores[0]._places, device="cuda"))
    assert all(store.page_locked for store in stores)
    assert granted.registered == [(file.bytes.data_ptr(), 4096, 8)]  # one page of it
    address = file.bytes.data_ptr()
    del file
    stores.pop()
    assert not granted.unregistered
    stores.clear()
    assert granted.unregistered == [address]


def test_a_refusal_to_lock_a_file_names_the_other_store(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Runtime(801))
    with pytest.raises(HostMemoryError, match=r"CUDA error 801.*set backing_store to memory.*page_lock to auto"):
        write_store(in_memory(), tmp_path / "file", page_lock="require", device="cuda")


def test_a_file_that_cannot_be_locked_is_tried_once_for_all_stores_in_it(tmp_path, monkeypatch):
    refusing = Runtime(801)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: refusing)
    first = write_store(in_memory(), tmp_path / "file", device="cuda")
    second = CheckpointStore(first.layout, first.segments, first._places, device="cuda")
    assert not first.page_locked
    assert not second.page_locked
    assert len(refusing.registered) == 1
    with pytest.raises(HostMemoryError, match="CUDA error 801"):
        CheckpointStore(first.layout, first.segments, first._places, device="cuda", page_lock="require")
