"""A recorded run: its routing, what each step computed, and its references to KV blocks, in one file.

The file is that of a `RoutingTrace` with more in it, so `RoutingTrace.load` reads it too; and a trace alone is a
recording of which less is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wisp.errors import TraceError
from wisp.kv_trace import KvTrace
from wisp.npz import pack_fields, read_fields, unpack_fields, write_fields
from wisp.trace import RoutingTrace, joined

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
        if self.kv is not None:
            last = max(self.kv.steps.max(initial=-1), self.kv.preemptions.max(initial=-1))
            if last >= self.routing.steps:
                raise TraceError(f"a KV event is of step {last} but the recording has {self.routing.steps} steps")

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

    def part(self, start: int, stop: int) -> "Recording":
        """The steps `start` to `stop` and what refers to them; `join` of all parts in order gives the whole again."""
        kept = np.zeros(self.routing.steps, dtype=np.bool_)
        kept[start:stop] = True
        return Recording(
            self.routing.select(kept),
            None if self.prefill_tokens is None else self.prefill_tokens[start:stop],
            None if self.requests is None else self.requests[start:stop],
            self.expert_bytes,
            None if self.kv is None else self.kv.part(start, stop),
        )

    @classmethod
    def join(cls, parts: Sequence["Recording"]) -> "Recording":
        """One recording from pieces of one run, in order.

        Raises:
            TraceError: there is none, or they are not of one run.
        """
        if not parts:
            raise TraceError("nothing was recorded: there is no piece to join")
        first = parts[0]
        for other in parts[1:]:
            if first._kind() != other._kind():
                raise TraceError(f"pieces of different runs do not join: {first._kind()} and {other._kind()}")
        routing = RoutingTrace.join([part.routing for part in parts])
        starts = np.cumsum([0, *(part.routing.steps for part in parts[:-1])])
        return cls(
            routing,
            joined([part.prefill_tokens for part in parts]),
            joined([part.requests for part in parts]),
            first.expert_bytes,
            None
            if first.kv is None
            else KvTrace.join([(part.kv, int(start)) for part, start in zip(parts, starts, strict=True) if part.kv]),
        )

    def _kind(self) -> tuple[object, ...]:
        """What pieces of one run have in common."""
        kv = None if self.kv is None else self.kv.block_tokens
        return (
            (self.routing.layers, self.routing.num_experts, self.expert_bytes),
            (self.routing.tokens is None, self.prefill_tokens is None, self.requests is None, kv),
        )

    def save(self, path: str | Path) -> None:
        """Write everything to a compressed .npz at exactly this path."""
        write_fields(path, self._fields())

    def to_bytes(self) -> bytes:
        """The same, not compressed, for another process to `from_bytes`."""
        return pack_fields(self._fields())

    def _fields(self) -> dict[str, NDArray[Any]]:
        fields = self.routing.fields()
        if self.prefill_tokens is not None:
            fields["prefill_tokens"] = self.prefill_tokens
        if self.requests is not None:
            fields["requests"] = self.requests
        if self.expert_bytes is not None:
            fields["expert_bytes"] = np.array(self.expert_bytes)
        if self.kv is not None:
            fields |= self.kv.fields()
        return fields

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
        return cls._from_fields(fields, path)

    @classmethod
    def from_bytes(cls, data: bytes, source: str) -> "Recording":
        """Read what `to_bytes` gave; `source` says where it came from in the `TraceError` of `load`."""
        return cls._from_fields(unpack_fields(data, source), source)

    @classmethod
    def _from_fields(cls, fields: dict[str, NDArray[Any]], path: str | Path) -> "Recording":
        routing = RoutingTrace.from_fields(fields, path)
        try:
            return cls(
                routing,
                fields.get("prefill_tokens"),
                fields.get("requests"),
                int(fields["expert_bytes"]) if "expert_bytes" in fields else None,
                _kv(fields),
            )
        except TraceError as error:
            raise TraceError(f"{path} contradicts itself: {error}; record it anew") from error
        except (KeyError, ValueError, TypeError) as error:
            raise TraceError(f"{path} lacks a part of what it records ({error}); record it anew") from error


def _kv(fields: dict[str, NDArray[Any]]) -> KvTrace | None:
    return KvTrace.from_fields(fields) if any(name.startswith("kv_") for name in fields) else None
