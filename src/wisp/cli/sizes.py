"""Sizes of a memory, slots or blocks: which a user names, and which of a long range a table shows."""

from wisp.errors import ConfigError

COUNTS = 9


def spread(first: int, last: int, chosen: int | None = None) -> list[int]:
    """At most nine whole numbers from `first` to `last`, evenly, ends included, and the chosen one; ascending."""
    evenly = {first + round((last - first) * index / (COUNTS - 1)) for index in range(COUNTS)}
    return sorted(evenly | ({chosen} if chosen is not None else set()))


def parse_sizes(text: str, option: str) -> list[int]:
    """Ascending sizes, as `option` takes them: `8,12,16`, `8:32` in nine counts, ends included, or `8:32:2`.

    Raises:
        ConfigError: it is none of these.
    """
    try:
        if ":" not in text:
            return sorted({int(part) for part in text.split(",")})
        first, last, *step = (int(part) for part in text.split(":"))
        if first > last or len(step) > 1 or any(count < 1 for count in step):
            raise ValueError
    except ValueError:
        raise ConfigError(f"{option} takes 8,12,16 or 8:32 or 8:32:2 (the smaller first), not {text!r}") from None
    return list(range(first, last + 1, *step)) if step else spread(first, last)
