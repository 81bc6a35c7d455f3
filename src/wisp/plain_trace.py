"""Routing traces as other programs write them: CSV or JSON lines of (step, layer, experts).

CSV has a header line with the columns `step`, `layer` and `experts`, in any order, and further ones are left alone.
`experts` holds ids separated by spaces or semicolons: `0,3,17 40 101`. One expert a line works as well.

A JSON line is an object with the same names: `{"step": 0, "layer": 3, "experts": [17, 40, 101]}`.

Steps and layers are whole numbers. Lines may come in any order; lines of the same step and layer are united, and a
step without a line for a layer requires no expert of it. Steps and layers are numbered anew from 0, without gaps.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from wisp.errors import TraceError
from wisp.trace import RoutingTrace

MOST_EXPERTS = 4096
"""Of a layer: more than any published model has. A higher id is that of something else, and would take all memory."""

_COLUMNS = ("step", "layer", "experts")


def read_plain_trace(path: str | Path, num_experts: int | None = None) -> RoutingTrace:
    """Read a trace of CSV or JSON lines; which of the two it is shows in its first character.

    Args:
        path: the file, in UTF-8.
        num_experts: experts of each layer; if left out, one more than the highest id in the file, which has to be
            below `MOST_EXPERTS`.

    Raises:
        TraceError: the file cannot be read, or a line (named by its number) is not one of a trace.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not text; give CSV or JSON lines of (step, layer, experts)") from error
    lines = _json_lines(text, path) if text.lstrip().startswith("{") else _csv_lines(text, path)
    places: list[tuple[int, int]] = []
    experts: list[list[int]] = []
    for number, fields in lines:
        try:
            step, layer, ids = _whole(fields["step"]), _whole(fields["layer"]), [_whole(e) for e in fields["experts"]]
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path}, line {number}: {_why(error)}; a line has step, layer and experts") from error
        for expert in ids:
            if not 0 <= expert < (num_experts or MOST_EXPERTS):
                raise TraceError(f"{path}, line {number}: there is no expert {expert}{_range(num_experts)}")
        places.append((step, layer))
        experts.append(ids)
    if not any(experts):
        raise TraceError(f"{path} is empty: no line names an expert")
    return _assemble(places, experts, num_experts or max(max(ids, default=0) for ids in experts) + 1)


def _assemble(places: list[tuple[int, int]], experts: list[list[int]], num_experts: int) -> RoutingTrace:
    steps, step_index = np.unique([step for step, _ in places], return_inverse=True)
    layers, layer_index = np.unique([layer for _, layer in places], return_inverse=True)
    membership = np.zeros((len(layers), len(steps), num_experts), dtype=np.bool_)
    lengths = [len(ids) for ids in experts]
    flat = np.array([expert for ids in experts for expert in ids])
    membership[np.repeat(layer_index, lengths), np.repeat(step_index, lengths), flat] = True
    return RoutingTrace.from_membership(membership)


def _csv_lines(text: str, path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
    if text.strip() and missing:
        raise TraceError(
            f"{path} is neither JSON lines nor CSV with a header of {','.join(_COLUMNS)}: {missing[0]} is missing"
        )
    for fields in reader:
        ids = (fields["experts"] or "").replace(";", " ").split()
        yield reader.line_num, {**fields, "experts": ids}


def _json_lines(text: str, path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as error:
            raise TraceError(f"{path}, line {number} is not JSON ({error.msg}); it may be cut short") from error
        if not isinstance(fields, dict) or not isinstance(fields.get("experts", []), list):
            raise TraceError(f"{path}, line {number}: expected an object whose experts are a list")
        yield number, fields


def _whole(value: object) -> int:
    """A whole number, as JSON has it or as text."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def _why(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _range(num_experts: int | None) -> str:
    return f": a layer has 0 to {(num_experts or MOST_EXPERTS) - 1}{'' if num_experts else ' at most'}"
