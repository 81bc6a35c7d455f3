"""`wisp simulate TRACE.npz`: the faults of policies at several numbers of slots, without a GPU."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from wisp.cli.sizes import parse_sizes, spread
from wisp.cli.trace_file import FigureOption, JsonOption, PhaseOption, TraceArgument, check_output, describe
from wisp.errors import ConfigError, UnknownPolicyError
from wisp.policies import OFFLINE_POLICIES, POLICIES
from wisp.recording import Recording
from wisp.trace import RoutingTrace
from wisp.units import format_bytes, parse_bytes

DEFAULT_POLICIES = "lru,lfru,least_stale,belady"


def simulate(
    trace: TraceArgument,
    policies: Annotated[
        str, typer.Option(help=f"Of {', '.join((*POLICIES, *OFFLINE_POLICIES))}; belady knows the future: the bound.")
    ] = DEFAULT_POLICIES,
    slots: Annotated[
        str | None,
        typer.Option(
            metavar="SLOTS",
            help="8,12,16 or 8:32 (nine counts, evenly) or 8:32:2; from the widest step to all experts if left out.",
        ),
    ] = None,
    expert_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of one expert, such as 9MiB; as recorded if left out.")
    ] = None,
    kv_blocks: Annotated[
        str | None,
        typer.Option(metavar="BLOCKS", help="Sizes of the KV pool, written like --slots, for a trace that has KV."),
    ] = None,
    output: FigureOption = None,
    phase: PhaseOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Replay a trace against policies and numbers of slots: faults, hit ratio and bytes moved.

    It is the code that decides in a running pager, so the faults are those that the pager would have. The replay
    begins with nothing resident. Recorded KV references are replayed against pools that evict by last use, as vLLM's.
    """
    from rich.console import Console

    from wisp.cli.kv_table import KvRow, check_blocks, kv_dict, kv_table, shown_sizes
    from wisp.cli.tables import show
    from wisp.plots.figure import check_figure
    from wisp.simulate import simulate as replay
    from wisp.simulate import simulate_kv
    from wisp.workingset import KvReuse, by_turn
    from wisp.workingset.summary import check_slots

    if output is not None:
        check_figure(output)
        check_output(output)
    names = parse_policies(policies)
    size = None if expert_bytes is None else parse_bytes(expert_bytes)
    if size == 0:
        raise ConfigError(
            f"--expert-bytes is {expert_bytes}, but an expert has at least one byte; give more, or leave it out"
        )
    recording = Recording.load(trace)
    steps = recording.phase(phase)
    counts = _all_slots(steps) if slots is None else parse_sizes(slots, "--slots")
    for count in counts:
        check_slots(steps, count)
    kv = recording.kv if recording.kv is not None and len(recording.kv.blocks) else None
    sizes = None if kv_blocks is None else parse_sizes(kv_blocks, "--kv-blocks")
    for size_of_pool in sizes or ():
        check_blocks(kv, size_of_pool)
    console = Console(stderr=as_json)
    replays = []
    pools = []
    with console.status("") as status:
        for count in counts:
            for name in names:
                status.update(f"replaying {name} at {count} slots")
                replays.append(replay(steps, count, name))
        reuse = None if kv is None else KvReuse.of(by_turn(recording))
        if kv is not None and reuse is not None:
            status.update("replaying KV blocks")
            pools = [simulate_kv(by_turn(recording), blocks) for blocks in sizes or shown_sizes(reuse, None)]
    title = describe(trace, recording, steps, phase)
    rows = [KvRow(pool.blocks, pool.hits, pool.capacity_misses) for pool in pools]
    if as_json:
        content = as_dict(title, replays, size or recording.expert_bytes)
        content["kv"] = None if kv is None or reuse is None else kv_dict(kv, reuse, rows)
        typer.echo(json.dumps(content, indent=1))
    else:
        console.print(title, highlight=False)
        show(console, table(replays, size or recording.expert_bytes))
        if kv is not None and reuse is not None:
            show(console, kv_table(kv, reuse, rows, None))
    if output is not None:
        from wisp.plots.replays import draw_replays

        draw_replays(replays, title, output)
        console.print(f"figure: {output}", highlight=False)


def as_dict(title: str, replays: Sequence[Any], expert_bytes: int | None) -> dict[str, Any]:
    """The replays for a program."""
    return {
        "trace": title,
        "replays": [
            {
                "slots": each.slots,
                "policy": each.policy,
                "references": each.total_references,
                "faults": each.total_faults,
                "evictions": each.total_evictions,
                "hit_ratio": 1 - each.fault_ratio,
                "copied_bytes": None if expert_bytes is None else each.copied_bytes(expert_bytes),
            }
            for each in replays
        ],
    }


def parse_policies(text: str) -> list[str]:
    """The names between the commas, once each; `UnknownPolicyError` for one that is none."""
    known = [*POLICIES, *OFFLINE_POLICIES]
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise UnknownPolicyError(name, known)
    return names


def _all_slots(trace: RoutingTrace) -> list[int]:
    return spread(int(trace.widths().max()), trace.num_experts)


def table(replays: Sequence[Any], expert_bytes: int | None) -> Any:
    """One row for each replay; beside the bound, if it was replayed, how far each is above it."""
    from rich import box
    from rich.table import Table

    bounds = {replay.slots: replay.total_faults for replay in replays if replay.policy in OFFLINE_POLICIES}
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    result.add_column("slots", justify="right")
    result.add_column("policy")
    for heading in ("faults", "faults/step", "hit ratio", "moved", *(["above the bound"] if bounds else [])):
        result.add_column(heading, justify="right", no_wrap=True)
    before = replays[0].slots
    for replay in replays:
        if replay.slots != before:
            result.add_section()
        cells = [
            f"{replay.total_faults:,}",
            f"{replay.total_faults / max(replay.faults.shape[1], 1):.2f}",
            f"{1 - replay.fault_ratio:.1%}",
            "-" if expert_bytes is None else format_bytes(replay.copied_bytes(expert_bytes)),
        ]
        if bounds:
            cells.append(_above(replay.total_faults, bounds[replay.slots]))
        result.add_row("" if replay.slots == before and result.row_count else f"{replay.slots}", replay.policy, *cells)
        before = replay.slots
    return result


def _above(faults: int, bound: int) -> str:
    return f"{faults / bound - 1:+.1%}" if bound else "-"
