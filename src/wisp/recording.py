"""A recorded run: its routing, what each step computed, and its references to KV blocks, in one file.

The file is that of a `RoutingTrace` with more in it, so `RoutingTrace.load` reads it too; and a trace alone is a
recording of which less is known.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wisp.errors import TraceError
from wisp.kv_trace import KvTrace
from wisp.trace import RoutingTrace, read_fields, write_fields

Phase = Literal["auto", "all", "decode", "prefill"]


@dataclass(frozen=True, eq=False)
class Recording:
    """What is None was not recorded."""

    routing: RoutingTrace
    """One step for each of the engine's; `tokens` counts all tokens of a step."""
    prefill_tokens: NDArray[np.int64] | None = None
    """[steps]: how many of a step's tokens belong to prompts (or are computed again after a preemption)."""
    requests: NDArray[np.int64] | None = None
    """[steps]: requests in each step."""
    expert_bytes: int | None = None
    """Bytes of one expert of one layer."""
    kv: KvTrace | None = None

    def __post_init__(self) -> None:
        for name in ("prefill_tokens", "requests"):
            counts = getattr(self, name)
            if counts is None:
                continue
            if counts.dtype != np.int64 or counts.shape != (self.routing.steps,) or np.any(counts < 0):
                raise TraceError(f"{name} must be {self.routing.steps} numbers of type int64, none negative")
        if self.expert_bytes is not None and self.expert_bytes < 1:
            raise TraceError(f"an expert of {self.expert_bytes} bytes does not exist")

    def phase(self, phase: Phase) -> RoutingTrace:
        """The steps of one phase: `decode` computes no prompt, `prefill` some (decoding may run along).

        `auto` is decode where the phases are known, and all steps where they are not.

        Raises:
            TraceError: the phases are not known, or no step remains.
        """
        if self.prefill_tokens is None and phase in ("decode", "prefill"):
            raise TraceError(f"this trace does not tell prefill from decode; leave out --phase {phase}")
        if self.prefill_tokens is None or phase == "all":
            steps = self.routing
        else:
            steps = self.routing.select((self.prefill_tokens > 0) == (phase == "prefill"))
        if not steps.widths().any():
            of = "" if steps is self.routing else " of this phase"
            raise TraceError(f"the trace is empty: none of its {steps.steps} steps{of} requires an expert")
        return steps

    def save(self, path: str | Path) -> None:
        """Write everything to a compressed .npz at exactly this path."""
        fields = self.routing.fields()
        if self.prefill_tokens is not None:
            fields["prefill_tokens"] = self.prefill_tokens
        if self.requests is not None:
            fields["requests"] = self.requests
        if self.expert_bytes is not None:
            fields["expert_bytes"] = np.array(self.expert_bytes)
        if self.kv is not None:
            fields |= self.kv.fields()
        write_fields(path, fields)

    @classmethod
    def load(cls, path: str | Path) -> "Recording":
        """Read what `save` or `RoutingTrace.save` wrote.

        Raises:
            TraceError: the file cannot be opened, is foreign, damaged (cut short, say) or of a newer version.
        """
        try:
            fields = read_fields(path)
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
        routing = RoutingTrace.from_fields(fields, path)
        try:
            return cls(
                routing,
                fields.get("prefill_tokens"),
                fields.get("requests"),
                int(fields["expert_bytes"]) if "expert_bytes" in fields else None,
                _kv(fields),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise TraceError(f"{path} lacks a part of what it records ({error}); record it anew") from error


def _kv(fields: dict[str, NDArray[Any]]) -> KvTrace | None:
    return KvTrace.from_fields(fields) if any(name.startswith("kv_") for name in fields) else None
