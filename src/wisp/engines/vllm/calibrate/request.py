"""What the calibrating process is asked, and what it answers."""

from dataclasses import dataclass
from typing import Any

from wisp.allocator.measurement import Measurements

PROGRESS = "wisp-progress: "
"""Starts the lines that tell how far it is."""


@dataclass(frozen=True)
class CalibrationRequest:
    """An engine, and what of its model decides what to measure."""

    model: str
    settings: dict[str, Any]
    """The wisp configuration."""
    moe_layers: int
    num_experts: int
    top_k: int
    expert_bytes: int
    engine_flags: tuple[str, ...] = ()
    streams: tuple[int, ...] = (1, 2, 4, 8)
    chunks: tuple[int, ...] = (128, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class CalibrationReport:
    """What was found."""

    measured: Measurements
    engine: str
    """How it ran, in words."""
    gpu: str | None
    device_bytes: int | None
