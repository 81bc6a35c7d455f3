"""Copies in the background end as ordinary ones do, whatever is copied, in the order in which they were asked for."""

import os
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wisp.pager import host_copies
from wisp.pager.host_copies import HostCopies

CUTS = (slice(None), slice(1, None), slice(None, None, 2))
TYPES = (torch.bfloat16, torch.uint8, torch.float8_e4m3fn, torch.int32)


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copies, "LEAST_BYTES", 4)
    monkeypatch.setattr(host_copies, "PIECE_BYTES", 24)
    monkeypatch.setattr(host_copies, "MOST_UNDER_WAY_BYTES", 200)


def numbers(shape: tuple[int, ...], dtype: torch.dtype, start: int) -> torch.Tensor:
    return ((torch.arange(torch.Size(shape).numel()) + start) % 100).view(shape).to(dtype)


@pytest.mark.usefixtures("small")
@given(
    copies=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from(CUTS),
            st.sampled_from(CUTS),
            st.sampled_from(TYPES),
            st.booleans(),
            st.booleans(),
        ),
        max_size=12,
    ),
    dtype=st.sampled_from(TYPES),
)
def test_they_end_as_ordinary_copies_do(copies: list[tuple[object, ...]], dtype: torch.dtype) -> None:
    target, expected = (torch.zeros((4, 6, 8), dtype=dtype) for _ in range(2))
    background = HostCopies()
    for number, (expert, rows, columns, source_type, transposed, whole) in enumerate(copies):
        places = [each[:, rows, columns] if whole else each[expert, rows, columns] for each in (target, expected)]
        source = numbers(tuple(places[0].shape), source_type, 7 * number)
        if transposed:
            source = source.transpose(-1, -2).contiguous().transpose(-1, -2)
        places[1].copy_(source)
        if not background.take(places[0], source):
            places[0].copy_(source)
    background.wait()
    assert torch.equal(target.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("whole", [True, False])
def test_what_an_expert_consists_of_is_copied_by_others(whole: bool) -> None:
    """Experts of a row each, and of the whole layer at once."""
    target, source = torch.zeros((4, 700, 512), dtype=torch.bfloat16), numbers((4, 600, 512), torch.bfloat16, 3)
    background = HostCopies()
    if whole:
        assert background.take(target[:, 100:], source)
    else:
        assert all(background.take(target[expert, 100:], source[expert]) for expert in range(4))
    background.wait()
    assert torch.equal(target[:, 100:], source)
    assert not target[:, :100].any()


def test_it_waits_for_what_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, copy = threading.Event(), host_copies._copy
    monkeypatch.setattr(host_copies, "_copy", lambda *args: (go_on.wait(20), copy(*args)))
    target, source = torch.zeros(1 << 20), torch.ones(1 << 20)
    background = HostCopies()
    assert background.take(target, source)
    assert not target.any()
    threading.Timer(0.1, go_on.set).start()
    background.wait()
    assert target.all()


@pytest.mark.parametrize("again", [slice(None), slice(1000, None), slice(None, -1000), slice(1000, -1000)])
def test_what_is_written_twice_ends_as_written_last(monkeypatch: pytest.MonkeyPatch, again: slice) -> None:
    first, copy = threading.Event(), host_copies._copy

    def slow_at_first(target: torch.Tensor, source: torch.Tensor, start: int, nbytes: int) -> None:
        if source[0] == 1:
            first.wait(0.3)
        copy(target, source, start, nbytes)

    monkeypatch.setattr(host_copies, "_copy", slow_at_first)
    target, background = torch.zeros(1 << 20), HostCopies()
    assert background.take(target, torch.ones(1 << 20))
    assert background.take(target[again], torch.full((1 << 20,), 2.0)[again])
    background.wait()
    assert (target[again] == 2).all()
    assert target.sum() == 2 * len(target[again]) + (len(target) - len(target[again]))


@pytest.mark.parametrize("turned", [False, True])
def test_what_is_left_to_the_caller_comes_after_what_was_begun(monkeypatch: pytest.MonkeyPatch, turned: bool) -> None:
    """Of other numbers, or of others in order, over what is being written; or of what is."""
    go_on, copy = threading.Event(), host_copies._copy
    monkeypatch.setattr(host_copies, "_copy", lambda *args: (go_on.wait(20), copy(*args)))
    target, other, background = torch.zeros(1024, 1024), torch.zeros(1024, 1024), HostCopies()
    threading.Timer(0.1, go_on.set).start()
    assert background.take(target, torch.ones(1024, 1024))
    ordinary = (other.t(), target) if turned else (target[:, ::2], torch.full((1024, 512), 2.0))
    assert not background.take(*ordinary)
    ordinary[0].copy_(ordinary[1])
    background.wait()
    assert other.all() if turned else (target[:, ::2] == 2).all()


@pytest.mark.parametrize(
    ("target", "source"),
    [
        (torch.zeros(1 << 18), torch.zeros(1 << 18, dtype=torch.float64)),
        (torch.zeros(1 << 18), torch.zeros(1)),
        (torch.zeros(16), torch.zeros(16)),
        (torch.zeros(1 << 18, device="meta"), torch.zeros(1 << 18)),
        (torch.zeros(1 << 18), 3.0),
    ],
)
def test_what_is_no_copy_of_many_bytes_is_left_to_the_caller(target: torch.Tensor, source: object) -> None:
    assert not HostCopies().take(target, source)  # type: ignore[arg-type]


def test_nothing_is_handed_over_where_there_is_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert not HostCopies().take(torch.zeros(1 << 20), torch.zeros(1 << 20))
