"""Everything wisp raises on purpose. Each message carries the numbers and the remedy.

WispError
├── ConfigError               a setting has no meaning, or not together with another
│   ├── UnknownPolicyError    no replacement policy has this name
│   ├── DeviceMemoryError     the device has no room for so much
│   └── AdmissionFloorError   a budget holds not even the fewest slots and KV blocks that serve
├── UnsupportedError          this engine, version, model, kernel or feature cannot be paged (yet)
├── WorkingSetTooLargeError   one wave needs more experts than there are slots
├── HostMemoryError           the backing store does not fit into host memory
├── CheckpointError           a checkpoint is missing, truncated or of another shape
│   └── NotDownloadedError    of a model on a hub nothing is here yet
├── StepError                 a step names experts that the layer does not have
├── TraceError                a trace file is foreign, truncated or of another version
├── RecordingError            a recording of a running engine cannot be started, goes on no longer, or has failed
├── ServerError               a server does not answer what it is asked
├── StatsError                a server's counters cannot be read
└── VerifyError               an engine of a comparison did not run to its end
"""

from collections.abc import Sequence

from wisp.byte_text import format_bytes, size_from


class WispError(Exception):
    """Base class of every error that wisp raises on purpose; its text is fit for a user."""


class ConfigError(WispError):
    """A setting has no meaning, or not together with another."""


class UnknownPolicyError(ConfigError):
    """No replacement policy has this name."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"unknown replacement policy {name!r}; known are {', '.join(known)}")
        self.name, self.known = name, known


class AdmissionFloorError(ConfigError):
    """A budget holds not even the fewest expert slots and KV blocks with which the scheduler makes progress."""

    def __init__(self, need_bytes: int, budget_bytes: int, remedies: Sequence[str] = ()) -> None:
        self.need_bytes, self.budget_bytes, self.remedies = need_bytes, budget_bytes, tuple(remedies)
        super().__init__(
            f"{format_bytes(budget_bytes)} is too little: top-k expert slots, the KV of all sequences and what is "
            f"always resident take {format_bytes(need_bytes)}; "
            + ", or ".join([*remedies, f"give {size_from(need_bytes)}"])
        )


class DeviceMemoryError(ConfigError):
    """The device has no room for so many slots, or for a budget."""

    def __init__(self, need_bytes: int, free_bytes: int, what: str, *, remedy: str = "lower expert_slots") -> None:
        super().__init__(
            f"{what} takes {format_bytes(need_bytes)} of device memory, but {format_bytes(free_bytes)} are free; "
            f"{remedy}"
        )
        self.need_bytes, self.free_bytes = need_bytes, free_bytes


class UnsupportedError(WispError):
    """This engine, version, model, kernel or feature cannot be paged (yet)."""


class WorkingSetTooLargeError(WispError):
    """One wave needs more experts at once than there are slots."""

    def __init__(self, need: int, slots: int, *, why: str = "one step") -> None:
        super().__init__(
            f"{why} needs {need} experts at once but there are {slots} slots; set expert_slots to {need} or more"
        )
        self.need, self.slots = need, slots


class HostMemoryError(WispError):
    """The backing store does not fit into host memory, or cannot be page-locked."""


class CheckpointError(WispError):
    """A checkpoint is missing, truncated or of another shape."""


class NotDownloadedError(CheckpointError):
    """Of a model on a hub nothing is on this machine yet."""


class StepError(WispError, ValueError):
    """The experts of a step are not ids of this layer's experts."""


class TraceError(WispError):
    """A trace file is foreign, truncated or of another version."""


class RecordingError(WispError):
    """A recording of a running engine cannot be started, goes on no longer, or has failed."""


class ServerError(WispError):
    """A server does not answer what it is asked."""


class StatsError(WispError):
    """A server's counters cannot be read."""


class VerifyError(WispError):
    """An engine of a comparison did not run to its end, so nothing can be said about its output."""
