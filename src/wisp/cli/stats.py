"""`wisp stats URL`: what paging does on a running server."""

import json
import re
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from wisp.errors import ConfigError
from wisp.units import format_bytes, format_seconds

REFRESH_SECONDS = 2.0


def stats(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server, such as http://localhost:8000.")],
    layers: Annotated[bool, typer.Option("--layers", help="One row a layer as well.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, every two seconds, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")] = False,
    curves: Annotated[
        bool, typer.Option("--curves", help="What other sizes would miss, of a server with --measure.")
    ] = False,
    api_key: Annotated[
        str | None, typer.Option(help="The server's key, for --curves.", envvar="VLLM_API_KEY", show_envvar=True)
    ] = None,
) -> None:
    """Show hits, faults, bytes moved, evictions and waves of the server at URL."""
    from wisp.cli.served_counters import scrape
    from wisp.cli.served_curves import curve_tables, read_curves
    from wisp.cli.tables import show, show_in_turn

    if watch and (as_json or curves):
        raise ConfigError("--watch goes with neither --json nor --curves; call those as often as you need them")
    served = scrape(url)
    metered, answer = read_curves(url, api_key) if curves else (None, None)
    if as_json:
        typer.echo(json.dumps(as_dict(served) | ({"curves": answer} if answer else {}), indent=2))
        return
    from rich.console import Console

    console = Console()
    if watch:
        show_in_turn(console, _tables(url, served, with_layers=layers))
        return
    show(console, table(served, with_layers=layers), *(curve_tables(metered) if metered else ()))


def _tables(url: str, served: Any, *, with_layers: bool) -> Iterator[Any]:
    """Of `served`, and then again and again of what the server says."""
    from wisp.cli.served_counters import scrape

    yield table(served, with_layers=with_layers)
    while True:
        time.sleep(REFRESH_SECONDS)
        before, served = served, scrape(url)
        yield table(served, with_layers=with_layers, before=before)


def as_dict(served: Any) -> dict[str, Any]:
    """The same numbers for a program: totals, facts, and each layer."""
    return {
        "hit_ratio": served.hit_ratio,
        "total": served.total,
        "layers": served.layers,
        "pool": {**served.facts, "ranks": served.ranks, "kernel": served.kernel, "device": served.device},
    }


def table(served: Any, *, with_layers: bool = False, before: Any = None) -> Any:
    """A table of the totals and, if asked, of each layer; `before` is an earlier scrape to show what came since."""
    from rich import box
    from rich.table import Table

    facts = served.facts
    divided = f" on each of {facts['expert_ranks']:.0f} ranks" if facts["expert_ranks"] > 1 else ""
    title = (
        f"{facts['expert_slots']:.0f} of {facts['experts']:.0f} experts resident{divided} in each of "
        f"{facts['layers']:.0f} layers, {format_bytes(int(facts['expert_bytes']))} an expert"
    )
    locked = "page-locked" if facts["page_locked"] else "NOT page-locked"
    where = served.kernel if served.device == "cpu" else f"{served.kernel}, backing store {locked}"
    ranks = f", {served.ranks} ranks" if facts["engine_ranks"] > 1 else ""
    if served.ranks < facts["engine_ranks"]:
        ranks += f" of {facts['engine_ranks']:.0f}; the counters of the others are not on the server's machine"
    result = Table(
        title=title, box=box.SIMPLE_HEAD, padding=0, pad_edge=False, caption=f"on {served.device} by {where}{ranks}"
    )
    result.add_column("", no_wrap=True)
    for heading in ("hit ratio", "references", "faults", "evictions", "waves", "moved", "copying"):
        result.add_column(heading, justify="right", no_wrap=True)
    if with_layers:
        for name, fields in served.layers.items():
            result.add_row(_short(name), *_cells(fields))
        result.add_section()
    result.add_row("total", *_cells(served.total))
    if before is not None:
        since = {field: value - before.total[field] for field, value in served.total.items()}
        result.add_row(f"last {REFRESH_SECONDS:.0f} s", *_cells(since))
    return result


def _short(layer: str) -> str:
    """`model.layers.7.mlp.experts` -> `layer 7`; a name without a number stays."""
    number = re.search(r"\.(\d+)\.", layer)
    return f"layer {number[1]}" if number else layer


def _cells(fields: dict[str, float]) -> list[str]:
    from wisp.pager.counters import hit_ratio

    return [
        f"{hit_ratio(fields):.1%}" if fields["references"] else "-",
        f"{fields['references']:,.0f}",
        f"{fields['faults']:,.0f}",
        f"{fields['evictions']:,.0f}",
        f"{fields['waves']:,.0f}",
        format_bytes(int(fields["bytes_moved"])),
        format_seconds(fields["copy_seconds"]),
    ]
