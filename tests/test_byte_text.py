"""A size that a message advises is one that our own parser takes, and on the right side of what is meant."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.byte_text import size_from, size_within
from wisp.units import parse_budget

MIB = 1 << 20
SOURCE = Path(__file__).parents[1] / "src" / "wisp"
BY_HAND = re.compile(r"[0-9][fg]\}\s?[KMGT]iB")


@given(st.integers(MIB, 2**50))
def test_what_is_advised_is_taken_and_suffices(count):
    assert 0 <= parse_budget(size_from(count), "--gpu-memory") - count < MIB
    assert 0 <= count - parse_budget(size_within(count), "--gpu-memory") < MIB


@pytest.mark.parametrize(
    ("count", "text"), [(24 << 30, "24GiB"), ((24 << 30) - 1, "24GiB"), (MIB + 1, "2MiB"), (1, "1MiB")]
)
def test_the_least_size_that_suffices(count, text):
    assert size_from(count) == text


@pytest.mark.parametrize(("count", "text"), [(24 << 30, "24GiB"), ((24 << 30) - 1, "24575MiB"), (MIB, "1MiB")])
def test_the_largest_size_within(count, text):
    assert size_within(count) == text


def test_no_message_writes_sizes_in_a_way_of_its_own():
    assert BY_HAND.search('f"{count / 2**30:.2f} GiB"')
    found = [str(file) for file in sorted(SOURCE.rglob("*.py")) if BY_HAND.search(file.read_text())]
    assert found == []
