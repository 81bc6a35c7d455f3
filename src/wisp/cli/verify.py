"""`wisp verify MODEL`: is the paged output the unpaged one, bit by bit?"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from wisp.errors import ConfigError

console = Console()

CAPTION = "tokens, logprobs: same answers of all; cached: tokens from the prefix cache; hits: of expert references"


def verify(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Checkpoint folder, or a name that vLLM can load.")],
    slots: Annotated[str, typer.Option(help="Slot counts to compare, such as 4,8,16.")],
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate for each request.", min=1)] = 32,
    prompts: Annotated[Path | None, typer.Option(help="File with one prompt a line.", exists=True)] = None,
    policy: Annotated[str, typer.Option(help="Replacement policy.")] = "lru",
    break_: Annotated[bool, typer.Option("--break", help="Load wrong experts on purpose: must differ.")] = False,
    layerwise: Annotated[
        bool, typer.Option(help="Compare each layer with itself computed from all experts; needs no unpaged engine.")
    ] = False,
    clients: Annotated[
        int, typer.Option(help="Serve so many concurrent OpenAI clients, and replay their schedule unpaged.", min=0)
    ] = 0,
) -> None:
    """Compare paged engines with the unpaged one on the same prompts and the same schedule.

    Further options go to vLLM, for both engines. Exits with 1 if anything differs.
    """
    counts = _slot_counts(slots)
    flags = tuple(context.args)
    if clients and (break_ or layerwise):
        raise ConfigError("--clients goes with neither --break nor --layerwise; run them one after the other")
    if layerwise:
        same = _layerwise(model, counts, _settings(policy, break_), max_tokens, prompts, flags)
    elif clients:
        same = _clients(model, counts, clients, max_tokens, flags)
    else:
        same = _engines(model, counts, _settings(policy, break_), max_tokens, prompts, flags)
    if not same:
        raise typer.Exit(1)


def _slot_counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--slots takes whole numbers separated by commas, such as 4,8,16, not {text!r}") from None
    if min(counts) < 1:
        raise ConfigError(f"--slots takes numbers of 1 or more, not {min(counts)}")
    return counts


def _settings(policy: str, break_expert: bool) -> dict[str, Any]:
    return {"policy": policy, "break_expert": break_expert}


def _workload(max_tokens: int, prompts: Path | None) -> Any:
    from wisp.engines.vllm.verify.workload import TEXTS, standard_workload

    texts = [line for line in prompts.read_text().splitlines() if line.strip()] if prompts else TEXTS
    return standard_workload(texts, max_tokens=max_tokens)


def _engines(
    model: str,
    counts: list[int],
    settings: dict[str, Any],
    max_tokens: int,
    prompts: Path | None,
    flags: tuple[str, ...],
) -> bool:
    from wisp.engines.vllm.verify.compare import engine_flags, judge, run_arm
    from wisp.pager.counters import hit_ratio

    workload = _workload(max_tokens, prompts)
    flags = engine_flags(flags)
    with console.status("unpaged: stock vLLM with all experts"):
        unpaged = run_arm(model, None, workload, flags)
    table = _table(f"{model}: paged against unpaged, same schedule", "cached", "hits", "faults")
    same = True
    for count in counts:
        with console.status(f"paged: {count} slots"):
            paged = run_arm(model, {"expert_slots": count, **settings}, workload, flags)
        verdict = judge(unpaged, paged)
        same = same and verdict.identical
        counters = paged.counters or {"references": 0.0, "faults": 0.0}
        table.add_row(
            *_cells(count, verdict, len(paged.steps)),
            f"{verdict.cached_tokens}",
            f"{hit_ratio(counters):.1%}",
            f"{counters['faults']:.0f}",
            _verdict(verdict.identical),
        )
    console.print(table)
    return same


def _clients(model: str, counts: list[int], clients: int, max_tokens: int, flags: tuple[str, ...]) -> bool:
    from wisp.engines.vllm.verify.clients import compare_under_clients
    from wisp.engines.vllm.verify.compare import engine_flags

    title = f"{model}: paged server against the unpaged engine, same schedule"
    table = _table(title, "clients")
    same = True
    for count in counts:
        with console.status(f"{clients} clients at {count} slots, then their schedule unpaged"):
            verdict, steps = compare_under_clients(model, count, clients, engine_flags(flags), max_tokens=max_tokens)
        same = same and verdict.identical
        table.add_row(*_cells(count, verdict, steps), str(clients), _verdict(verdict.identical))
    console.print(table)
    return same


def _layerwise(
    model: str,
    counts: list[int],
    settings: dict[str, Any],
    max_tokens: int,
    prompts: Path | None,
    flags: tuple[str, ...],
) -> bool:
    from wisp.engines.vllm.verify.compare import engine_flags, run_arm

    columns = ("slots", "layer", "calls", "identical", "max diff", "verdict")
    table = Table(*columns, title=f"{model}: each layer against itself with all experts", box=box.SIMPLE)
    same = True
    for count in counts:
        with console.status(f"{count} slots, layer by layer"):
            result = run_arm(
                model,
                {"expert_slots": count, **settings},
                _workload(max_tokens, prompts),
                engine_flags(flags),
                layerwise=True,
            )
        for layer in result.layers:
            identical = layer.calls > 0 and layer.identical == layer.calls
            same = same and identical
            table.add_row(
                str(count),
                layer.layer,
                str(layer.calls),
                str(layer.identical),
                f"{layer.largest_difference:.3g}",
                _verdict(identical),
            )
    console.print(table)
    return same


def _table(title: str, *more: str) -> Table:
    columns = ("slots", "tokens", "logprobs", "max diff", "steps", *more, "verdict")
    return Table(*columns, title=title, caption=CAPTION, box=box.SIMPLE, padding=(0, 1, 0, 0))


def _cells(slots: int, verdict: Any, steps: int) -> tuple[str, ...]:
    return (
        str(slots),
        f"{verdict.same_tokens}/{verdict.requests}",
        f"{verdict.same_logprobs}/{verdict.requests}",
        f"{verdict.largest_difference:.3g}",
        f"{steps}" if verdict.same_schedule else f"{steps} DIFFERENT",
    )


def _verdict(identical: bool) -> str:
    return "[green]identical[/green]" if identical else "[red]DIFFERENT[/red]"
