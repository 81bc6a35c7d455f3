"""What the commands that read or write a trace share: its options and its description."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from wisp.errors import ConfigError
from wisp.recording import Phase, Recording
from wisp.trace import RoutingTrace

TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE.npz", help="A trace that wisp has recorded or imported.")]
PhaseOption = Annotated[
    Literal["auto", "all", "decode", "prefill"],
    typer.Option(help="Steps to look at; auto is decode where the trace tells the phases apart, all otherwise."),
]
FigureOption = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FIGURE", help="Draw a figure as well: .png, .svg or .pdf.")
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]


def check_output(path: Path) -> None:
    """`ConfigError` unless a file can be written there."""
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: it is a folder, or its folder does not exist; name a file")
    place = path if path.exists() else path.parent
    if not os.access(place, os.W_OK):
        raise ConfigError(
            f"{path} cannot be written: {place} is not yours to write to, or read-only; name another file"
        )


def describe(path: Path, recording: Recording, trace: RoutingTrace, phase: Phase) -> str:
    """One line on what is looked at."""
    which = "" if trace is recording.routing else f"{'decode' if phase == 'auto' else phase} "
    tokens = "" if trace.tokens is None else f" ({trace.tokens.sum():,} tokens)"
    return f"{path.name}: {trace.steps:,} {which}steps{tokens} of {trace.layers} layers of {trace.num_experts} experts"
