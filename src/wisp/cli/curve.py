"""`wisp curve TRACE.npz`: miss ratio curves and working sets of a trace."""

from typing import Annotated, Any

import typer

from wisp.cli.trace_file import FigureOption, PhaseOption, TraceArgument, describe
from wisp.recording import Recording

SHOWN_CAPACITIES = 9


def curve(
    trace: TraceArgument,
    slots: Annotated[int | None, typer.Option(help="The number of slots to mark, and to show by layer.")] = None,
    output: FigureOption = None,
    phase: PhaseOption = "auto",
) -> None:
    """Show what a number of slots costs in misses, layer by layer, and how many experts stretches of steps touch.

    Misses are those of LRU, exactly as a pager has them. The trace begins cold: first references count as misses.
    """
    from rich.console import Console

    from wisp.plots.figure import check_figure
    from wisp.workingset.summary import TraceSummary, check_slots

    if output is not None:
        check_figure(output)
    recording = Recording.load(trace)
    steps = recording.phase(phase)
    if slots is not None:
        check_slots(steps, slots)
    console = Console()
    with console.status("counting stack distances"):
        summary = TraceSummary.of(steps)
    title = describe(trace, recording, steps, phase)
    console.print(title, highlight=False)
    console.print(capacity_table(summary, slots))
    console.print(layer_table(summary, slots))
    console.print(window_table(summary))
    if output is not None:
        from wisp.plots.curves import draw_curves

        draw_curves(summary, slots, title, output)
        console.print(f"figure: {output}", highlight=False)


def shown_capacities(widest: int, num_experts: int, slots: int | None) -> list[int]:
    """About nine numbers of slots from the widest step to all experts, and the chosen one."""
    span = num_experts - widest
    spread = {widest + round(span * index / (SHOWN_CAPACITIES - 1)) for index in range(SHOWN_CAPACITIES)}
    return sorted(spread | ({slots} if slots is not None else set()))


def capacity_table(summary: Any, slots: int | None) -> Any:
    """Misses of all layers by the number of slots."""
    total = summary.total
    table = _table("all layers together")
    for heading in ("slots", "miss ratio", "misses/step", "one slot more saves", "steps without a miss"):
        table.add_column(heading, justify="right", no_wrap=True)
    for capacity in shown_capacities(summary.widest_step, summary.trace.num_experts, slots):
        table.add_row(
            f"{capacity}",
            f"{total.miss_ratio(capacity):.1%}",
            f"{total.misses_per_step(capacity):.2f}",
            f"{total.value_of_next_slot(capacity) / total.steps:.3f}/step",
            f"{summary.clean_share(capacity):.1%}",
            style="bold" if capacity == slots else None,
        )
    return table


def layer_table(summary: Any, slots: int | None) -> Any:
    """Each layer: its references, its misses at the chosen slots, and what it touches."""
    capacity = summary.widest_step if slots is None else slots
    table = _table(
        f"layers, at {capacity} slots" + (" (the widest step)" if slots is None else ""),
        "footprint: experts that the trace touches; overlap: with the step before",
    )
    for heading in ("layer", "experts/step", "widest", "miss ratio", "misses/step", "footprint", "overlap"):
        table.add_column(heading, justify="right", no_wrap=True)
    neighbours = summary.windows[0].shared
    for layer, own in enumerate(summary.curves):
        table.add_row(
            f"{layer}",
            *_misses(own, capacity),
            f"{summary.footprint[layer]}",
            "-" if neighbours is None else f"{neighbours[layer]:.1%}",
        )
    table.add_section()
    table.add_row(
        "total",
        *_misses(summary.total, capacity),
        f"{summary.footprint.sum()}",
        "-" if neighbours is None else f"{neighbours.mean():.1%}",
    )
    return table


def window_table(summary: Any) -> Any:
    """What windows and bursts of steps touch, as means over the layers."""
    table = _table("stretches of steps, mean of the layers")
    for heading in ("steps", "working set", "union of a burst", "overlap with the burst before"):
        table.add_column(heading, justify="right", no_wrap=True)
    for window in summary.windows:
        table.add_row(
            f"{window.steps:,}",
            f"{window.working_set.mean():.1f}",
            f"{window.union.mean():.1%}",
            "-" if window.shared is None else f"{window.shared.mean():.1%}",
        )
    return table


def _misses(own: Any, capacity: int) -> tuple[str, ...]:
    return (
        f"{own.references / own.steps:.2f}",
        f"{own.widest_step}",
        f"{own.miss_ratio(capacity):.1%}",
        f"{own.misses_per_step(capacity):.2f}",
    )


def _table(title: str, caption: str | None = None) -> Any:
    from rich import box
    from rich.table import Table

    return Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
