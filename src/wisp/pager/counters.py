"""What paging did, per layer, in memory that other processes may read while it happens."""

import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wisp.errors import StatsError

FIELDS = ("steps", "references", "faults", "bytes_moved", "evictions", "waves", "copy_seconds")
"""Per layer: steps planned (one that ran in groups of tokens counts as several); distinct experts they needed;
loads; bytes loaded; experts that lost their slot; kernel waves; seconds of copying (by the clock or by the stream where
the host decides; bytes over the rate of the link where the device does)."""

_MAGIC = b"WISPCNT1"
_HEADER_BYTES = 1 << 16


@dataclass(frozen=True)
class PoolFacts:
    """What seldom changes while the engine runs."""

    num_experts: int
    """Of a layer, on this rank."""
    expert_slots: int
    expert_bytes: int
    kernel: str
    device: str
    expert_ranks: int = 1
    """Ranks among which a layer's experts are divided; 1 where each rank has its share of every expert."""
    engine_ranks: int = 1
    """Workers of the engine in all, on whatever machine."""


class Counters:
    """One float64 row of `FIELDS` a layer. Written by one process; any process may `open` the file to read."""

    def __init__(self, facts: PoolFacts, capacity: int, path: Path | None = None) -> None:
        """Start at zero with room for `capacity` layers: in memory, or in the file `path` (replaced if there)."""
        self.facts = facts
        self.layers: tuple[str, ...] = ()
        self.page_locked = True
        self._path, self._rows = path, np.zeros((capacity, len(FIELDS)))
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".new")
            fresh.write_bytes(bytes(_HEADER_BYTES + self._rows.nbytes))
            fresh.replace(path)
            self._rows = _map_rows(path, mmap.ACCESS_WRITE)
            self._write_header()

    @classmethod
    def open(cls, path: Path) -> "Counters":
        """Attach to another process's counters, read-only; `StatsError` if the file is not one."""
        try:
            with path.open("rb") as file:
                header = file.read(_HEADER_BYTES)
            if not header.startswith(_MAGIC):
                raise StatsError(f"{path} holds no wisp counters of this version")
            stored = json.loads(header[len(_MAGIC) :].rstrip(b"\0"))
            counters = cls(PoolFacts(**stored["facts"]), capacity=0)
            counters.layers, counters.page_locked = tuple(stored["layers"]), stored["page_locked"]
            counters._rows = _map_rows(path, mmap.ACCESS_READ)
            if len(counters._rows) < len(counters.layers):
                raise ValueError(f"{len(counters.layers)} layers but {len(counters._rows)} rows")
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StatsError(f"{path} holds no readable wisp counters: {error}") from error
        return counters

    def add_layer(self, name: str, *, page_locked: bool) -> int:
        """Take a row for one more layer; returns its index."""
        self.layers += (name,)
        self.page_locked = self.page_locked and page_locked
        self._write_header()
        return len(self.layers) - 1

    def set_facts(self, facts: PoolFacts) -> None:
        """Tell readers of other facts, as after a change of the slots."""
        self.facts = facts
        self._write_header()

    @property
    def values(self) -> NDArray[np.float64]:
        """The rows in use: [layers, fields]."""
        return self._rows[: len(self.layers)]

    def add(self, layer: int, **amounts: float) -> None:
        """Add to the named fields of one layer."""
        row = self._rows[layer]
        for name, amount in amounts.items():
            row[_COLUMN[name]] += amount

    def put(self, layer: int, **totals: float) -> None:
        """Set the named fields of one layer to totals that are kept elsewhere."""
        row = self._rows[layer]
        for name, total in totals.items():
            row[_COLUMN[name]] = total

    def reset(self) -> None:
        """Forget what happened so far, as after an engine's warm-up."""
        self._rows[:] = 0.0

    def layer(self, index: int) -> dict[str, float]:
        """The fields of one layer by name."""
        return dict(zip(FIELDS, self.values[index].tolist(), strict=True))

    def total(self) -> dict[str, float]:
        """The fields summed over the layers."""
        return dict(zip(FIELDS, self.values.sum(axis=0).tolist(), strict=True))

    def _write_header(self) -> None:
        if self._path is None:
            return
        stored = {"facts": asdict(self.facts), "layers": self.layers, "page_locked": self.page_locked}
        header = _MAGIC + json.dumps(stored).encode()
        if len(header) > _HEADER_BYTES:
            raise ValueError(f"the names of {len(self.layers)} layers do not fit the counters' header")
        with self._path.open("r+b") as file:
            file.write(header.ljust(_HEADER_BYTES, b"\0"))


_COLUMN: Mapping[str, int] = {name: column for column, name in enumerate(FIELDS)}


def hit_ratio(fields: Mapping[str, float]) -> float:
    """Share of referenced experts that were resident; 1.0 before the first reference."""
    return 1.0 - fields["faults"] / fields["references"] if fields["references"] else 1.0


def over_ranks(field: str, values: Sequence[float], *, experts_divided: bool) -> float:
    """One field of one layer over the ranks that have the layer.

    Each rank moves bytes of its own. Ranks that share every expert tell of the same references and faults; those
    among which the experts are divided, each of its own. Steps, waves and seconds are the most of any rank.
    """
    own = field == "bytes_moved" or (experts_divided and field in ("references", "faults", "evictions"))
    return sum(values) if own else max(values)


def merged_layers(parts: Sequence[Counters]) -> dict[str, dict[str, float]]:
    """Layer -> its fields over all ranks, in the order of the layers; a stage of a pipeline has some of them only."""
    found: dict[str, list[dict[str, float]]] = {}
    for part in parts:
        for index, name in enumerate(part.layers):
            found.setdefault(name, []).append(part.layer(index))
    divided = any(part.facts.expert_ranks > 1 for part in parts)
    return {
        name: {field: over_ranks(field, [rank[field] for rank in ranks], experts_divided=divided) for field in FIELDS}
        for name, ranks in found.items()
    }


def merged(parts: Sequence[Counters]) -> dict[str, float]:
    """The fields over all ranks, summed over the layers."""
    layers = merged_layers(parts).values()
    return {field: sum(layer[field] for layer in layers) for field in FIELDS}


def _map_rows(path: Path, access: int) -> NDArray[np.float64]:
    with path.open("r+b" if access == mmap.ACCESS_WRITE else "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=access)
    return np.frombuffer(mapped, dtype=np.float64, offset=_HEADER_BYTES).reshape(-1, len(FIELDS))
