"""`wisp import-trace FILE -o trace.npz`: routing that another program has recorded."""

from pathlib import Path
from typing import Annotated

import typer

from wisp.plain_trace import MOST_EXPERTS


def import_trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV or JSON lines of step, layer and experts.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="TRACE.npz", help="The trace to write.")],
    experts: Annotated[
        int | None,
        typer.Option(help="Experts of each layer; the highest id and one, if left out.", min=1, max=MOST_EXPERTS),
    ] = None,
) -> None:
    """Turn CSV or JSON lines into a trace for `wisp curve` and `wisp simulate`.

    CSV has a header: step,layer,experts and then lines such as 0,3,17 40 101. JSON lines are such as
    {"step": 0, "layer": 3, "experts": [17, 40, 101]}. Steps and layers are numbered anew from 0, without gaps.
    """
    from wisp.cli.trace_file import check_output
    from wisp.plain_trace import read_plain_trace

    check_output(output)
    trace = read_plain_trace(file, experts)
    trace.save(output)
    typer.echo(f"{output}: {trace.steps:,} steps of {trace.layers} layers of {trace.num_experts} experts")
