"""Bytes and seconds as people write them: 25769803776 <-> "24GiB", 0.0032 -> "3.2ms"."""

import re
from decimal import Decimal

from wisp.byte_text import BINARY_UNITS, format_bytes
from wisp.errors import ConfigError

__all__ = ["format_bytes", "format_seconds", "parse_budget", "parse_bytes"]

_BYTES_PER_UNIT = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_BYTES_PER_DECIMAL_UNIT = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_LEAST_BARE_NUMBER = 1 << 20
_NUMBER_AND_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)
_TIME_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
_SMALLEST_SHOWN_IN = {"min": 120.0, "h": 7200.0}


def parse_bytes(text: str | int) -> int:
    """The bytes that `text` names; a fraction of a byte is rounded down.

    Units are binary (KiB MiB GiB TiB), in any case; a bare integer is bytes. "24GB" is refused: some write it for 24
    GiB, and read as what it says it is 7 % less.

    Raises:
        ConfigError: `text` is not a size, or in a unit that is not binary.
    """
    match = _NUMBER_AND_UNIT.fullmatch(str(text).strip())
    if match is None or isinstance(text, bool):
        raise _not_a_size(text)
    number, unit = match[1], match[2].lower()
    if unit in _BYTES_PER_DECIMAL_UNIT:
        raise _not_binary(text, number, unit)
    if unit not in _BYTES_PER_UNIT and unit:
        raise _not_a_size(text)
    if unit in ("", "b") and "." in number:
        raise _not_a_size(text)
    return int(Decimal(number) * _BYTES_PER_UNIT[unit or "b"])


def parse_budget(text: str, option: str) -> int:
    """The bytes of memory that an option names; a bare number below 1 MiB is refused, for nobody means "24" bytes.

    Raises:
        ConfigError: no size, or one without a unit.
    """
    count = parse_bytes(text)
    if str(text).strip().isdigit() and count < _LEAST_BARE_NUMBER:
        raise ConfigError(f"{option} {text} would be {text} bytes; write the unit, as in {option} {text}GiB")
    return count


def format_seconds(seconds: float) -> str:
    """Three significant digits in the unit that suits them: "3.2ms", "185us", "4.3s", "2.5min"."""
    if seconds == 0:
        return "0s"
    size = abs(seconds)
    for unit, unit_seconds in _TIME_UNITS:
        if float(f"{size:.3g}") >= _SMALLEST_SHOWN_IN.get(unit, unit_seconds):
            break
    value = float(f"{seconds / unit_seconds:.3g}")
    return f"{value:.0f}{unit}" if abs(value) >= 100 else f"{value:g}{unit}"


def _not_a_size(text: object) -> ConfigError:
    return ConfigError(
        f"{text!r} is not a size; write bytes as a whole number (4096), or a number with a binary unit "
        f"(KiB, MiB, GiB, TiB), such as 24GiB or 128MiB"
    )


def _not_binary(text: object, number: str, unit: str) -> ConfigError:
    count = int(Decimal(number) * _BYTES_PER_DECIMAL_UNIT[unit])
    binary = next(name for name in BINARY_UNITS if name.lower() == f"{unit[0]}ib")
    return ConfigError(
        f"{text!r} is in decimal units, and sizes are given in binary ones here; write {number}{binary} if that is "
        f"what you mean, or {count} (bytes; {format_bytes(count)}) for what it says"
    )
