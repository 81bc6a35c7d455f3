"""Sizes and times are read and written as people mean them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import ConfigError
from wisp.units import format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("24GiB", 24 * 2**30),
        ("128MiB", 128 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        (" 2gib ", 2 * 2**30),
        ("1TiB", 2**40),
        ("4096", 4096),
        ("4096B", 4096),
        ("0", 0),
        (4096, 4096),
        ("0.3KiB", 307),
        ("9007199254740993B", 9007199254740993),
    ],
)
def test_sizes_in_binary_units_are_read(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    ["24X", "-1", -1, "", " ", "GiB", "24G", "1.5", "1.5B", "1,5GiB", "1e9", "inf", "٣GiB", True, "1 2GiB"],
)
def test_nonsense_is_refused_with_the_accepted_forms(text):
    with pytest.raises(ConfigError, match="GiB") as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)
    assert "4096" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "meant", "said"),
    [
        ("24GB", "24GiB", "24000000000 (bytes; 22.35GiB)"),
        ("2.5 gb", "2.5GiB", "2500000000 (bytes; 2.33GiB)"),
        ("7MB", "7MiB", "7000000 (bytes; 6.68MiB)"),
        ("3kB", "3KiB", "3000 (bytes; 2.93KiB)"),
        ("1TB", "1TiB", "1000000000000 (bytes; 931.32GiB)"),
    ],
)
def test_a_decimal_unit_is_refused_with_what_is_meant_and_what_is_said(text, meant, said):
    with pytest.raises(ConfigError) as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)
    assert f"write {meant} if that is what you mean, or {said} for what it says" in str(caught.value)
    assert parse_bytes(meant) > parse_bytes(said.partition(" ")[0])


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1KiB"),
        (24 * 2**30, "24GiB"),
        (3 * 2**29, "1.5GiB"),
        (2**30 - 1, "1GiB"),
        (5000 * 2**40, "5000TiB"),
        (-(432 * 2**20), "-432MiB"),
        (100 * 2**20, "100MiB"),
    ],
)
def test_bytes_are_written_in_the_largest_unit_that_fits(count, text):
    assert format_bytes(count) == text


@given(st.integers(0, 2**50))
def test_what_is_written_reads_back_within_its_last_digit(count):
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.0051)


@given(st.integers(0, 1023), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_whole_units_round_trip_exactly(number, unit):
    count = parse_bytes(f"{number}{unit}")
    assert parse_bytes(format_bytes(count)) == count


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0032, "3.2ms"),
        (185e-6, "185us"),
        (1e-9, "1ns"),
        (4.3, "4.3s"),
        (0.9999, "1s"),
        (119, "119s"),
        (150, "2.5min"),
        (7200, "2h"),
        (-0.0032, "-3.2ms"),
        (0.0123456, "12.3ms"),
    ],
)
def test_seconds_are_written_in_the_unit_that_suits_them(seconds, text):
    assert format_seconds(seconds) == text
