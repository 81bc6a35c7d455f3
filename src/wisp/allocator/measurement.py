"""What a calibration measures: steps of a running engine whose routing is fixed, and copies."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DecodePoint:
    """Decode steps that are all alike."""

    streams: int
    context: int
    """Tokens that each stream has read back from KV, on average over the steps."""
    experts: float
    """Distinct experts a step, summed over the layers."""
    faults: float
    """Of them read from the backing store, a step; by the engine's own counters."""
    seconds: float
    """Of a step: the median."""
    steps: int
    is_pinned: bool = False
    """Whether its experts were to have slots from before the first step on, so that there is no fault."""


@dataclass(frozen=True)
class PrefillPoint:
    """One prefill step."""

    tokens: int
    seconds: float
    """From the request to its first token: the least of some."""
    moved_bytes: float
    """Read from the backing store meanwhile."""


@dataclass(frozen=True)
class CopyPoint:
    """A copy out of the backing store's kind of memory, as the pager makes it."""

    nbytes: int
    seconds: float
    by: str
    """`copy`: a copy of its own; `rows`: many such, one behind the other; `kernel`: a kernel on the device reads it."""

    @property
    def bytes_per_second(self) -> float:
        """The rate."""
        return self.nbytes / self.seconds


@dataclass(frozen=True)
class Measurements:
    """Of one engine on one machine."""

    decode: tuple[DecodePoint, ...]
    prefill: tuple[PrefillPoint, ...]
    copies: tuple[CopyPoint, ...]
    device_bytes_per_second: float
    """At which a large tensor is read where the slots are."""
    decide_seconds: float
    """Of paging a layer whose experts are all resident."""
    expert_slots: int
