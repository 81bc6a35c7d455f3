"""Ranks of one engine share what was free before any of them had taken some."""

import gc
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.engines.vllm import failure
from wisp.engines.vllm.counters import counter_files
from wisp.engines.vllm.host_memory.memory_claims import MemoryClaims, path_for
from wisp.errors import HostMemoryError
from wisp.pager.host_memory import HEADROOM_BYTES, HostMemory

GIB = 1 << 30


def free(gib):
    return lambda: HostMemory(gib * GIB + HEADROOM_BYTES, "the machine's available memory")


def test_a_rank_that_comes_later_is_not_refused_for_what_the_others_have_filled(tmp_path):
    claims = [MemoryClaims(tmp_path / "e.memory", str(rank)) for rank in range(2)]
    claims[0].claim(40 * GIB, free(100), "the store")
    claims[1].claim(40 * GIB, free(60), "the store")  # by now the first has filled its own


def test_all_ranks_together_must_fit(tmp_path):
    claims = [MemoryClaims(tmp_path / "e.memory", str(rank)) for rank in range(3)]
    claims[0].claim(40 * GIB, free(100), "the store")
    claims[1].claim(50 * GIB, free(60), "the store")
    with pytest.raises(
        HostMemoryError, match=r"the store on 3 ranks so far needs 110GiB .* leaves 100GiB .* 10GiB more"
    ):
        claims[2].claim(20 * GIB, free(1000), "the store")
    claims[2].claim(10 * GIB, free(1000), "the store")


def test_one_rank_reads_as_one(tmp_path):
    with pytest.raises(HostMemoryError, match=r"the store needs 2GiB"):
        MemoryClaims(tmp_path / "e.memory", "0").claim(2 * GIB, free(1), "the store")


def test_a_later_claim_of_the_same_rank_replaces_its_earlier_one(tmp_path):
    claims = MemoryClaims(tmp_path / "e.memory", "0")
    for need in (60, 90, 30):
        claims.claim(need * GIB, free(100), "the store")
    assert json.loads((tmp_path / "e.memory").read_text())["claims"] == {"0": 30 * GIB}


def test_claims_lapse_with_their_rank_and_the_file_with_the_last(tmp_path):
    path = tmp_path / "e.memory"
    claims = [MemoryClaims(path, str(rank)) for rank in range(2)]
    for claim in claims:
        claim.claim(30 * GIB, free(60), "the store")
    del claims[0]
    gc.collect()
    claims.append(MemoryClaims(path, "new"))
    claims[-1].claim(30 * GIB, free(0), "the store")
    claims.clear()
    del claim
    gc.collect()
    assert not path.exists()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 200))
def test_what_is_granted_at_the_same_time_never_exceeds_what_was_free(tmp_path_factory, needs, room):
    path = tmp_path_factory.mktemp("claims") / "e.memory"
    claims = [MemoryClaims(path, str(rank)) for rank in range(len(needs))]

    def granted(rank):
        try:
            claims[rank].claim(needs[rank] * GIB, free(room), "the store")
        except HostMemoryError:
            return 0
        return needs[rank]

    with ThreadPoolExecutor(len(needs)) as pool:
        total = sum(pool.map(granted, range(len(needs))))
    assert total <= room
    assert total == sum(needs) or sum(needs) > room


def test_the_file_is_swept_with_the_process_that_starts_the_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(counter_files.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv(counter_files.OWNER_VARIABLE, raising=False)
    kept = path_for("engine")
    kept.write_text("{}")
    stale = kept.with_name("99999999-engine.memory")
    stale.write_text("{}")
    counter_files.prepare_directory()
    assert kept.exists()
    assert not stale.exists()


def test_a_front_end_on_another_machine_owns_nothing_here(tmp_path, monkeypatch):
    monkeypatch.setattr(counter_files.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv(counter_files.OWNER_VARIABLE, "99999999")
    assert counter_files.owned_by_front_end() is None
    assert path_for("engine").name.startswith(f"{os.getppid()}-")
    monkeypatch.setenv(counter_files.OWNER_VARIABLE, str(os.getpid()))
    assert path_for("engine").name.startswith(f"{os.getpid()}-")


def test_a_reason_that_cannot_be_handed_over_is_raised_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv(failure.FILE_VARIABLE, str(tmp_path / "elsewhere" / "failure"))
    with pytest.raises(HostMemoryError, match="too little"), failure.handed_over():
        raise HostMemoryError("too little")
