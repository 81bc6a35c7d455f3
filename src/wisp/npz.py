"""Named arrays in the bytes of an .npz: how traces are kept in files, and sent from one process to another."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wisp.errors import TraceError


def write_fields(path: str | Path, fields: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to a compressed .npz at exactly this path."""
    archive: dict[str, Any] = dict(fields)
    with Path(path).open("wb") as file:
        np.savez_compressed(file, **archive)


def read_fields(path: str | Path) -> dict[str, NDArray[Any]]:
    """Every array of an .npz.

    Raises:
        TraceError: the file is foreign or damaged. OSError: it cannot be opened.
    """
    return unpack_fields(Path(path).read_bytes(), path)


def pack_fields(fields: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays as the bytes of an .npz, not compressed: for the way from one process to another."""
    archive: dict[str, Any] = dict(fields)
    packed = BytesIO()
    np.savez(packed, **archive)
    return packed.getvalue()


def unpack_fields(data: bytes, path: object) -> dict[str, NDArray[Any]]:
    """Every array of the bytes of an .npz; `path` names them in the error.

    Raises:
        TraceError: they are foreign or damaged.
    """
    if data and not data.startswith(b"PK"):
        raise TraceError(f"{path} is not a routing trace; expected a .npz written by RoutingTrace.save")
    try:
        with np.load(BytesIO(data), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile, zlib and numpy each fail in their own ways on damaged bytes
        raise TraceError(
            f"{path} is damaged or cut short at {len(data)} bytes ({type(error).__name__}: {error}); "
            f"copy it again or record it anew"
        ) from error
