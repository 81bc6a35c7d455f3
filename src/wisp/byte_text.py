"""Bytes as text: what is shown, and what a message advises to set, which has to suffice when it is read again."""

BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MIB = 1 << 20


def format_bytes(count: int) -> str:
    """The largest binary unit that fits, to two decimals: "1.5GiB"; a negative change keeps its sign."""
    sign, rest = ("-" if count < 0 else ""), float(abs(count))
    for unit in BINARY_UNITS:
        if round(rest, 2) < 1024 or unit == BINARY_UNITS[-1]:
            break
        rest /= 1024
    number = f"{rest:.2f}".rstrip("0").rstrip(".")
    return f"{sign}{number}{unit}"


def size_from(count: int) -> str:
    """The least size in whole MiB that is `count` bytes or more, to be set as it stands: "12311MiB", "24GiB"."""
    return _whole(-(-count // _MIB))


def size_within(count: int) -> str:
    """The largest size in whole MiB that is `count` bytes or less, to be set as it stands."""
    return _whole(count // _MIB)


def _whole(mib: int) -> str:
    return f"{mib}MiB" if mib % 1024 else f"{mib // 1024}GiB"
