"""What a running server's meters say of other sizes of its two memories."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wisp.cli.served_counters import TIMEOUT_SECONDS, server_root
from wisp.cli.server import answer_of, as_known, ask, key_headers
from wisp.engines.vllm.protocol import CURVES


@dataclass(frozen=True)
class ServedCurves:
    """As of one answer; see `Meters.read`."""

    half_life_steps: float
    layers: int
    expert_slots: int
    """That the server has now, in each layer."""
    expert_misses: tuple[float, ...]
    """A step, by slots from 0 to all experts, summed over layers."""
    lost_steps: int
    """That count in no curve, since the device overwrote them before they were read."""
    block_tokens: int
    pool_blocks: int
    """That the server has now."""
    block_references: float
    """A step."""
    block_misses: Mapping[int, float]
    """A step, by blocks."""

    @classmethod
    def of(cls, answer: dict[str, Any]) -> "ServedCurves":
        """What `as_known` catches of an answer that is of another form."""
        experts, kv = answer["experts"], answer["kv"]
        found = cls(
            half_life_steps=float(answer["half_life_steps"]),
            layers=int(experts["layers"]),
            expert_slots=int(experts["expert_slots"]),
            expert_misses=tuple(map(float, experts["misses_a_step"])),
            lost_steps=int(experts["lost_steps"]),
            block_tokens=int(kv["block_tokens"]),
            pool_blocks=int(kv["pool_blocks"]),
            block_references=float(kv["references_a_step"]),
            block_misses={int(size): float(missed) for size, missed in kv["misses_a_step"].items()},
        )
        if not 0 < found.expert_slots < len(found.expert_misses):
            raise ValueError(f"{found.expert_slots} expert slots beside {len(found.expert_misses)} numbers of misses")
        return found


def read_curves(url: str, api_key: str | None) -> tuple[ServedCurves, dict[str, Any]]:
    """What was answered, and the same as it came; `ServerError` of a server that does not meter, or in other words."""
    import httpx

    route = server_root(url) + CURVES
    with httpx.Client(headers=key_headers(api_key), timeout=TIMEOUT_SECONDS, follow_redirects=True) as client:
        answer = answer_of(ask(client, "GET", route, option="measure"))
    with as_known(route):
        return ServedCurves.of(answer), answer


def curve_tables(metered: ServedCurves) -> tuple[Any, Any]:
    """One table of expert slots, one of KV blocks; the sizes that the server has now are bold."""
    misses, now = metered.expert_misses, metered.expert_slots
    slots = _table(
        f"LRU misses a step by expert slots, {metered.layers} layers together",
        ("slots", "miss ratio", "misses/step", "one slot more saves"),
        f"{metered.lost_steps:,} steps count in no row: the device had overwritten them before they were read"
        if metered.lost_steps
        else None,
    )
    last = len(misses) - 1
    for size in sorted({max(1, now // 2), max(1, now - 1), now, min(now + 1, last), min(now * 3 // 2, last), last}):
        saved = misses[size] - misses[min(size + 1, last)]
        cells = (f"{size}", _ratio(misses[size], misses[0]), f"{misses[size]:.2f}", f"{saved:.3f}/step")
        slots.add_row(*cells, style="bold" if size == now else None)
    blocks = _table(
        f"LRU misses a step by KV blocks of {metered.block_tokens} tokens",
        ("blocks", "tokens", "miss ratio", "misses/step"),
        f"a block is missed the first time, too; the past halves every {metered.half_life_steps:.0f} steps",
    )
    for size, missed in sorted(metered.block_misses.items()):
        cells = (
            f"{size:,}",
            f"{size * metered.block_tokens:,}",
            _ratio(missed, metered.block_references),
            f"{missed:.3f}",
        )
        blocks.add_row(*cells, style="bold" if size == metered.pool_blocks else None)
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
