"""`wisp verify MODEL`: is the paged output the unpaged one, bit by bit?"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from wisp.cli.preflight import check_model, check_vllm
from wisp.cli.progress import working
from wisp.cli.sizes import parse_sizes
from wisp.cli.tables import show
from wisp.conversations import read_script
from wisp.errors import ConfigError
from wisp.policies import POLICIES

if TYPE_CHECKING:
    from wisp.engines.vllm.settings import WispSettings
    from wisp.engines.vllm.verify.workload import Workload

console = Console()

CAPTION = "tokens, logprobs: same answers of all; cached: tokens from the prefix cache; hits: of expert references"


def verify(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Checkpoint folder, or a name that vLLM can load.")],
    slots: Annotated[str, typer.Option(metavar="SLOTS", help="Slot counts to compare: 4,8,16 or 8:32:8.")],
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate for each request.", min=1)] = 32,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Text with one prompt a line, or JSON as demo/prompts.json: each turn by itself."),
    ] = None,
    policy: Annotated[str, typer.Option(help=f"Who is evicted: {', '.join(POLICIES)}.")] = POLICIES[0],
    decide: Annotated[str, typer.Option(help="Where paging is decided: auto, device or host.")] = "auto",
    backing_store: Annotated[str, typer.Option(help="Where all experts are: memory or checkpoint.")] = "memory",
    break_: Annotated[bool, typer.Option("--break", help="Load wrong experts on purpose: must differ.")] = False,
    layerwise: Annotated[
        bool,
        typer.Option(
            "--layerwise", help="Compare each layer with itself computed from all experts, without CUDA graphs."
        ),
    ] = False,
    clients: Annotated[
        int, typer.Option(help="Serve so many concurrent OpenAI clients, and replay their schedule unpaged.", min=0)
    ] = 0,
) -> None:
    """Compare paged engines with the unpaged one on the same prompts and the same schedule.

    Further options go to vLLM, for both engines. Exits with 1 if anything differs.
    """
    counts = _slot_counts(slots)
    check_model(model, counts[-1], context.args, option="--slots")
    check_vllm()
    from wisp.engines.vllm.engine_process import engine_flags
    from wisp.engines.vllm.settings import WispSettings

    # what no run has shown yet is what this is for
    common = {"policy": policy, "decide": decide, "break_expert": break_, "unshown_formats": True}
    common["backing_store"] = backing_store
    settings = [WispSettings.parse({"expert_slots": count, **common}) for count in counts]
    flags = engine_flags(context.args)
    if not layerwise:
        _check_compile_cache(flags)
    if clients and (break_ or layerwise or prompts):
        raise ConfigError("--clients goes with none of --break, --layerwise, --prompts; run them one after the other")
    if clients:
        same = _clients(model, settings, clients, max_tokens, flags)
    elif layerwise:
        # what a CUDA graph replays does not come by here, so it could not be recorded
        same = _layerwise(model, settings, _workload(max_tokens, prompts), (*flags, "--enforce-eager"))
    else:
        same = _engines(model, settings, _workload(max_tokens, prompts), flags)
    if not same:
        raise typer.Exit(1)


def _check_compile_cache(flags: tuple[str, ...]) -> None:
    """Refuse engines of which each compiles the model by itself: torch.compile takes the fastest of some variants."""
    if "--enforce-eager" not in flags and os.environ.get("VLLM_DISABLE_COMPILE_CACHE", "0") not in ("", "0"):
        raise ConfigError(
            "VLLM_DISABLE_COMPILE_CACHE is set, so that each engine would compile the model by itself, and code "
            "that is compiled twice may differ in its last bits; unset it, or compare with --enforce-eager"
        )


def _slot_counts(text: str) -> list[int]:
    counts = parse_sizes(text, "--slots")
    if counts[0] < 1:
        raise ConfigError(f"--slots takes numbers of 1 or more, not {counts[0]}")
    return counts


def _workload(max_tokens: int, prompts: Path | None) -> "Workload":
    from wisp.engines.vllm.verify.workload import TEXTS, standard_workload

    texts: tuple[str, ...] = TEXTS
    if prompts is not None:
        texts = tuple(turn for conversation in read_script(prompts).conversations for turn in conversation.turns)
    return standard_workload(texts, max_tokens=max_tokens)


def _engines(model: str, settings: list["WispSettings"], workload: "Workload", flags: tuple[str, ...]) -> bool:
    from wisp.engines.vllm.verify.compare import judge, run_arm
    from wisp.pager.counters import hit_ratio

    with working(console, "unpaged: stock vLLM with all experts"):
        unpaged = run_arm(model, None, workload, flags)
    table = _table(f"{model}: paged against unpaged, same schedule", "cached", "hits", "faults")
    same = True
    with _shown(table):
        for each in settings:
            with working(console, f"paged: {each.expert_slots} slots"):
                paged = run_arm(model, asdict(each), workload, flags)
            assert paged.counters is not None, "an engine that was not paged has raised"
            verdict = judge(unpaged, paged)
            same = same and verdict.identical
            table.add_row(
                *_cells(each.expert_slots, verdict, len(paged.steps)),
                f"{verdict.cached_tokens}",
                f"{hit_ratio(paged.counters):.1%}" if paged.counters["references"] else "-",
                f"{paged.counters['faults']:.0f}",
                _verdict(verdict.identical),
            )
    return same


def _clients(model: str, settings: list["WispSettings"], clients: int, max_tokens: int, flags: tuple[str, ...]) -> bool:
    from wisp.engines.vllm.verify.clients import compare_under_clients

    title = f"{model}: paged server against the unpaged engine, same schedule"
    table = _table(title, "clients")
    same = True
    with _shown(table):
        for each in settings:
            with working(console, f"{clients} clients at {each.expert_slots} slots, then their schedule unpaged"):
                verdict, steps = compare_under_clients(model, each, clients, flags, max_tokens=max_tokens)
            same = same and verdict.identical
            table.add_row(*_cells(each.expert_slots, verdict, steps), str(clients), _verdict(verdict.identical))
    return same


def _layerwise(model: str, settings: list["WispSettings"], workload: "Workload", flags: tuple[str, ...]) -> bool:
    from wisp.engines.vllm.verify.compare import run_arm

    columns = ("slots", "layer", "calls", "identical", "max diff", "verdict")
    table = Table(*columns, title=f"{model}: each layer against itself with all experts", box=box.SIMPLE)
    same = True
    with _shown(table):
        for each in settings:
            with working(console, f"{each.expert_slots} slots, layer by layer"):
                result = run_arm(model, asdict(each), workload, flags, layerwise=True)
            for layer in result.layers:
                identical = layer.calls > 0 and layer.identical == layer.calls
                same = same and identical
                table.add_row(
                    str(each.expert_slots),
                    layer.layer,
                    str(layer.calls),
                    str(layer.identical),
                    f"{layer.largest_difference:.3g}",
                    _verdict(identical),
                )
    return same


@contextmanager
def _shown(table: Table) -> Iterator[None]:
    """Show what has been compared at the end, also where a later engine fails or Ctrl-C ends it."""
    try:
        yield
    finally:
        if table.row_count:
            show(console, table)


def _table(title: str, *more: str) -> Table:
    columns = ("slots", "tokens", "logprobs", "max diff", "steps", *more, "verdict")
    return Table(*columns, title=title, caption=CAPTION, box=box.SIMPLE, padding=(0, 1, 0, 0))


def _cells(slots: int | None, verdict: Any, steps: int) -> tuple[str, ...]:
    return (
        str(slots),
        f"{verdict.same_tokens}/{verdict.requests}",
        f"{verdict.same_logprobs}/{verdict.requests}",
        f"{verdict.largest_difference:.3g}",
        f"{steps}" if verdict.same_schedule else f"{steps} DIFFERENT",
    )


def _verdict(identical: bool) -> str:
    return "[green]identical[/green]" if identical else "[red]DIFFERENT[/red]"
