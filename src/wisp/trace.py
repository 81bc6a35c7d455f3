"""A routing trace: which experts each step of each layer needs, recorded, saved and read back."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wisp.errors import StepError, TraceError
from wisp.npz import read_fields, write_fields

Step = Sequence[int]
"""The experts one step of one layer requires: distinct and ascending, possibly none."""

FORMAT = "wisp-routing-trace"
VERSION = 1

_ONES_IN_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


def as_step(experts: Iterable[int], num_experts: int) -> tuple[int, ...]:
    """A step from ids in any order, repeats allowed: a step is a set, so nothing is lost.

    Raises:
        StepError: an id is not an integer in [0, num_experts).
    """
    try:
        step = tuple(sorted(set(map(operator.index, experts))))
    except TypeError as error:
        raise StepError(f"expert ids must be a flat collection of integers: {error}") from error
    if step and not (step[0] >= 0 and step[-1] < num_experts):
        wrong = step[0] if step[0] < 0 else step[-1]
        raise StepError(
            f"expert {wrong} does not exist: this layer has experts 0 to {num_experts - 1}; "
            f"drop padding ids before planning"
        )
    return step


class RoutingTrace:
    """The expert sets of `steps` consecutive steps of `layers` layers, one bit an expert.

    A step of 48 layers of 128 experts takes 768 bytes.
    """

    def __init__(
        self,
        bits: NDArray[np.uint8],
        num_experts: int,
        tokens: NDArray[np.int64] | None = None,
    ) -> None:
        """Wrap packed sets; most callers want `from_steps` or a `TraceBuilder`.

        Args:
            bits: uint8 [layers, steps, ceil(num_experts / 8)], each row as `numpy.packbits` packs it.
            num_experts: experts of every layer.
            tokens: int64 [steps], tokens in each step, where known.

        Raises:
            TraceError: the shapes, types or values contradict each other.
        """
        row_bytes = -(-num_experts // 8)
        if num_experts < 1 or bits.dtype != np.uint8 or bits.ndim != 3 or bits.shape[2] != row_bytes:
            raise TraceError(
                f"{bits.dtype} {list(bits.shape)} cannot hold sets of {num_experts} experts; "
                f"expected uint8 [layers, steps, {row_bytes}]"
            )
        spare_bits = row_bytes * 8 - num_experts
        if spare_bits and np.any(bits[..., -1] & ((1 << spare_bits) - 1)):
            raise TraceError(f"a step names an expert beyond the {num_experts} that the trace declares")
        if tokens is not None and (tokens.dtype != np.int64 or tokens.shape != bits.shape[1:2] or np.any(tokens < 0)):
            raise TraceError(f"token counts must be {bits.shape[1]} numbers of type int64, none negative")
        self._bits, self.num_experts, self.tokens = bits, num_experts, tokens

    @classmethod
    def from_steps(
        cls,
        num_experts: int,
        layers: Sequence[Sequence[Iterable[int]]],
        tokens: Sequence[int] | None = None,
    ) -> "RoutingTrace":
        """A trace from nested ids, layers[layer][step] -> experts; every layer has the same number of steps.

        Raises:
            TraceError: the layers differ in length, or the token counts do.
            StepError: an id is out of range.
        """
        lengths = {len(steps) for steps in layers}
        if len(lengths) > 1:
            raise TraceError(f"layers of one trace must have equally many steps, not {sorted(lengths)}")
        builder = TraceBuilder(num_experts, len(layers))
        for index, experts_by_layer in enumerate(zip(*layers, strict=True)):
            builder.add(experts_by_layer, None if tokens is None else tokens[index])
        return builder.trace()

    @classmethod
    def from_membership(cls, membership: NDArray[np.bool_], tokens: NDArray[np.int64] | None = None) -> "RoutingTrace":
        """A trace from bool [layers, steps, num_experts]: whether the step requires the expert."""
        return cls(np.packbits(membership, axis=2), membership.shape[2], tokens)

    @property
    def layers(self) -> int:
        """Number of MoE layers."""
        return int(self._bits.shape[0])

    @property
    def steps(self) -> int:
        """Number of recorded steps."""
        return int(self._bits.shape[1])

    def layer(self, layer: int) -> list[Step]:
        """The steps of one layer, in order."""
        rows, experts = np.nonzero(self.membership(layer))
        ends = np.searchsorted(rows, np.arange(1, self.steps))
        return [tuple(ids.tolist()) for ids in np.split(experts, ends)] if self.steps else []

    def membership(self, layer: int, start: int = 0, stop: int | None = None) -> NDArray[np.bool_]:
        """bool [stop - start, num_experts] of one layer: whether the step requires the expert."""
        packed = self._bits[layer, start:stop]
        return np.unpackbits(packed, axis=1, count=self.num_experts).view(np.bool_)

    def widths(self) -> NDArray[np.int64]:
        """int64 [layers, steps]: how many experts each step requires."""
        widths: NDArray[np.int64] = _ONES_IN_BYTE[self._bits].sum(axis=2, dtype=np.int64)
        return widths

    def select(self, steps: NDArray[np.bool_]) -> "RoutingTrace":
        """The trace of the steps for which this bool [steps] is true, in order."""
        return RoutingTrace(self._bits[:, steps], self.num_experts, None if self.tokens is None else self.tokens[steps])

    @classmethod
    def join(cls, parts: Sequence["RoutingTrace"]) -> "RoutingTrace":
        """The steps of these traces of the same layers, one after the other; at least one trace.

        Raises:
            TraceError: they are of different layers, or the token counts of some are not known.
        """
        if len({(part.layers, part.num_experts) for part in parts}) > 1:
            raise TraceError("traces of different layers or numbers of experts do not join")
        bits = np.concatenate([part._bits for part in parts], axis=1)
        return cls(bits, parts[0].num_experts, joined([part.tokens for part in parts]))

    @classmethod
    def stack(cls, parts: Sequence["RoutingTrace"]) -> "RoutingTrace":
        """The layers of these traces of the same steps, one below the other; at least one trace.

        Raises:
            TraceError: they are of different steps or numbers of experts.
        """
        first = parts[0]
        for part in parts[1:]:
            counts = [None if trace.tokens is None else trace.tokens.tolist() for trace in (first, part)]
            if (part.steps, part.num_experts) != (first.steps, first.num_experts) or counts[0] != counts[1]:
                raise TraceError("traces of different steps or numbers of experts do not stack")
        return cls(np.concatenate([part._bits for part in parts]), first.num_experts, first.tokens)

    def fields(self) -> dict[str, NDArray[Any]]:
        """What a file holds of the trace, by name."""
        fields: dict[str, NDArray[Any]] = {
            "format": np.array(FORMAT),
            "version": np.array(VERSION),
            "num_experts": np.array(self.num_experts),
            "bits": self._bits,
        }
        if self.tokens is not None:
            fields["tokens"] = self.tokens
        return fields

    def save(self, path: str | Path) -> None:
        """Write the trace to a compressed .npz at exactly this path."""
        write_fields(path, self.fields())

    @classmethod
    def load(cls, path: str | Path) -> "RoutingTrace":
        """Read what `save` wrote.

        Raises:
            TraceError: the file is foreign, damaged (cut short, say) or of a newer version.
            OSError: the file cannot be opened.
        """
        return cls.from_fields(read_fields(path), path)

    @classmethod
    def from_fields(cls, fields: Mapping[str, NDArray[Any]], path: str | Path) -> "RoutingTrace":
        """The trace in what `read_fields` found at `path`; fields that it does not know are left alone.

        Raises:
            TraceError: they are those of another kind of file, incomplete, or of a newer version.
        """
        if "format" not in fields or str(fields["format"]) != FORMAT:
            raise TraceError(f"{path} is an .npz but not a routing trace; expected one by RoutingTrace.save")
        try:
            version = int(fields["version"])
            if version > VERSION:
                raise TraceError(
                    f"{path} has trace version {version} but this wisp reads up to {VERSION}; upgrade wisp-moe"
                )
            bits, num_experts = fields["bits"], int(fields["num_experts"])
        except (KeyError, ValueError, TypeError) as error:
            raise TraceError(f"{path} lacks a field of trace version {VERSION} ({error}); record it anew") from error
        try:
            return cls(bits, num_experts, fields.get("tokens"))
        except TraceError as error:
            raise TraceError(f"{path} contradicts itself: {error}; record it anew") from error

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RoutingTrace):
            return NotImplemented
        if self.tokens is None or other.tokens is None:
            tokens_agree = self.tokens is other.tokens
        else:
            tokens_agree = np.array_equal(self.tokens, other.tokens)
        same_experts = self.num_experts == other.num_experts
        return tokens_agree and same_experts and np.array_equal(self._bits, other._bits)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RoutingTrace(num_experts={self.num_experts}, layers={self.layers}, steps={self.steps})"


def joined(parts: Sequence[NDArray[np.int64] | None]) -> NDArray[np.int64] | None:
    """Counts of consecutive steps one after the other; None where they are not known.

    Raises:
        TraceError: some are known and some not.
    """
    known = [part for part in parts if part is not None]
    if len(known) not in (0, len(parts)):
        raise TraceError(f"{len(parts) - len(known)} of {len(parts)} pieces lack counts that the others have")
    return np.concatenate(known) if known else None


class TraceBuilder:
    """Collects a trace step by step while a model runs."""

    def __init__(self, num_experts: int, layers: int) -> None:
        self.num_experts, self.layers = num_experts, layers
        self._rows: list[NDArray[np.uint8]] = []
        self._tokens: list[int] = []

    def add(self, experts_by_layer: Sequence[Iterable[int]], tokens: int | None = None) -> None:
        """Append one step: the ids that each layer's router chose, in any order, repeats allowed.

        Give the token count in every step or in none.

        Raises:
            StepError: an id is out of range. TraceError: a layer or a token count is missing. Either way the
                step is not appended.
        """
        if len(experts_by_layer) != self.layers:
            raise TraceError(f"a step of this trace has {self.layers} layers, not {len(experts_by_layer)}")
        if self._rows and (tokens is None) == bool(self._tokens):
            raise TraceError(f"step {len(self._rows)}: give the token count in every step of a trace or in none")
        membership = np.zeros((self.layers, self.num_experts), dtype=np.bool_)
        for layer, experts in enumerate(experts_by_layer):
            membership[layer, list(as_step(experts, self.num_experts))] = True
        self._rows.append(np.packbits(membership, axis=1))
        if tokens is not None:
            self._tokens.append(tokens)

    def trace(self) -> RoutingTrace:
        """What has been collected so far; later steps do not change it."""
        bits = np.zeros((self.layers, len(self._rows), -(-self.num_experts // 8)), dtype=np.uint8)
        for index, row in enumerate(self._rows):
            bits[:, index] = row
        return RoutingTrace(bits, self.num_experts, np.array(self._tokens, dtype=np.int64) if self._tokens else None)
