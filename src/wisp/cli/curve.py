"""`wisp curve TRACE.npz`: miss ratio curves and working sets of a trace."""

import json
from typing import Annotated, Any

import typer

from wisp.cli.sizes import spread
from wisp.cli.trace_file import FigureOption, JsonOption, PhaseOption, TraceArgument, check_output, describe
from wisp.recording import Recording


def curve(
    trace: TraceArgument,
    slots: Annotated[int | None, typer.Option(help="The number of slots to mark, and to show by layer.")] = None,
    kv_blocks: Annotated[int | None, typer.Option(metavar="N", help="The size of the KV pool to mark.")] = None,
    output: FigureOption = None,
    phase: PhaseOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show what a number of slots costs in misses, layer by layer, and how many experts stretches of steps touch.

    Misses are those of LRU, exactly as a pager has them. The trace begins cold: first references count as misses.
    Where references to KV blocks were recorded, it also shows what a pool of any size would have lost of them.
    """
    from rich.console import Console

    from wisp.cli.kv_table import KvRow, check_blocks, kv_dict, kv_table, shown_sizes
    from wisp.cli.tables import show
    from wisp.plots.figure import check_figure
    from wisp.workingset import KvReuse, by_turn
    from wisp.workingset.summary import TraceSummary, check_slots

    if output is not None:
        check_figure(output)
        check_output(output)
    recording = Recording.load(trace)
    steps = recording.phase(phase)
    if slots is not None:
        check_slots(steps, slots)
    kv = recording.kv if recording.kv is not None and len(recording.kv.blocks) else None
    check_blocks(kv, kv_blocks)
    console = Console(stderr=as_json)
    with console.status("counting stack distances"):
        summary = TraceSummary.of(steps)
        reuse = None if kv is None else KvReuse.of(by_turn(recording))
    title = describe(trace, recording, steps, phase)
    sizes = [] if reuse is None else shown_sizes(reuse, kv_blocks)
    rows = [] if reuse is None else [KvRow(each, reuse.kept(each), reuse.lost(each)) for each in sizes]
    if as_json:
        content = as_dict(title, summary)
        content["kv"] = None if kv is None or reuse is None else kv_dict(kv, reuse, rows)
        typer.echo(json.dumps(content, indent=1))
    else:
        console.print(title, highlight=False)
        show(console, capacity_table(summary, slots), layer_table(summary, slots), window_table(summary))
        if kv is not None and reuse is not None:
            show(console, kv_table(kv, reuse, rows, kv_blocks))
    if output is not None:
        from wisp.plots.curves import KvCurve, draw_curves

        drawn = None if kv is None or reuse is None else KvCurve(reuse, kv.block_tokens, kv_blocks)
        draw_curves(summary, slots, title, output, drawn)
        console.print(f"figure: {output}", highlight=False)


def as_dict(title: str, summary: Any) -> dict[str, Any]:
    """Every number of slots, layer and window for a program; ratios from 0 to 1."""
    total = summary.total
    return {
        "trace": title,
        "steps": summary.trace.steps,
        "widest_step": summary.widest_step,
        "slots": [
            {
                "slots": slots,
                "miss_ratio": total.miss_ratio(slots),
                "misses_per_step": total.misses_per_step(slots),
                "next_slot_saves_per_step": total.value_of_next_slot(slots) / total.steps,
                "steps_without_miss": summary.clean_share(slots),
                "miss_ratio_by_layer": [own.miss_ratio(slots) for own in summary.curves],
            }
            for slots in range(summary.widest_step, summary.trace.num_experts + 1)
        ],
        "footprint_by_layer": summary.footprint.tolist(),
        "windows": [
            {
                "steps": window.steps,
                "working_set": float(window.working_set.mean()),
                "burst_union": float(window.union.mean()),
                "overlap": None if window.shared is None else float(window.shared.mean()),
            }
            for window in summary.windows
        ],
    }


def capacity_table(summary: Any, slots: int | None) -> Any:
    """Misses of all layers by the number of slots."""
    total = summary.total
    table = _table("all layers together")
    for heading in ("slots", "miss ratio", "misses/step", "one slot more saves", "steps without a miss"):
        table.add_column(heading, justify="right", no_wrap=True)
    for capacity in spread(summary.widest_step, summary.trace.num_experts, slots):
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
