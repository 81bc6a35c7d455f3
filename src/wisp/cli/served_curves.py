"""What a running server's meters say of other sizes of its two memories."""

from typing import Any

from wisp.cli.served_counters import TIMEOUT_SECONDS, server_root
from wisp.cli.server import answer_of, ask, key_headers
from wisp.engines.vllm.protocol import CURVES


def read_curves(url: str, api_key: str | None) -> dict[str, Any]:
    """See `Meters.read`; `ServerError` of a server that does not meter."""
    import httpx

    with httpx.Client(headers=key_headers(api_key), timeout=TIMEOUT_SECONDS, follow_redirects=True) as client:
        return answer_of(ask(client, "GET", server_root(url) + CURVES, option="measure"))


def curve_tables(metered: dict[str, Any]) -> tuple[Any, Any]:
    """One table of expert slots, one of KV blocks; the sizes that the server has now are bold."""
    experts, kv = metered["experts"], metered["kv"]
    misses, now = experts["misses_a_step"], experts["expert_slots"]
    slots = _table(
        f"LRU misses a step by expert slots, {experts['layers']} layers together",
        ("slots", "miss ratio", "misses/step", "one slot more saves"),
    )
    last = len(misses) - 1
    for size in sorted({max(1, now // 2), max(1, now - 1), now, min(now + 1, last), min(now * 3 // 2, last), last}):
        saved = misses[size] - misses[min(size + 1, last)]
        cells = (f"{size}", _ratio(misses[size], misses[0]), f"{misses[size]:.2f}", f"{saved:.3f}/step")
        slots.add_row(*cells, style="bold" if size == now else None)
    blocks = _table(
        f"LRU misses a step by KV blocks of {kv['block_tokens']} tokens",
        ("blocks", "tokens", "miss ratio", "misses/step"),
        f"a block is missed the first time, too; the past halves every {metered['half_life_steps']:.0f} steps",
    )
    for size, missed in sorted((int(size), missed) for size, missed in kv["misses_a_step"].items()):
        cells = (
            f"{size:,}",
            f"{size * kv['block_tokens']:,}",
            _ratio(missed, kv["references_a_step"]),
            f"{missed:.3f}",
        )
        blocks.add_row(*cells, style="bold" if size == kv["pool_blocks"] else None)
    return slots, blocks


def _ratio(misses: float, references: float) -> str:
    return f"{misses / references:.1%}" if references else "-"


def _table(title: str, headings: tuple[str, ...], caption: str | None = None) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
