"""Which sizes of a long range a table shows."""

COUNTS = 9


def spread(first: int, last: int, chosen: int | None = None) -> list[int]:
    """At most nine whole numbers from `first` to `last`, evenly, ends included, and the chosen one; ascending."""
    evenly = {first + round((last - first) * index / (COUNTS - 1)) for index in range(COUNTS)}
    return sorted(evenly | ({chosen} if chosen is not None else set()))
