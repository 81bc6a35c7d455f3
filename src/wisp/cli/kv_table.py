"""KV blocks by the size of the pool, as `wisp curve` and `wisp simulate` show them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from wisp.cli.sizes import spread
from wisp.errors import ConfigError
from wisp.kv_trace import KvTrace
from wisp.workingset import KvReuse


class KvRow(NamedTuple):
    """What a pool of so many blocks makes of the references that come back to a block."""

    blocks: int
    hits: int
    capacity_misses: int


def shown_sizes(reuse: KvReuse, chosen: int | None) -> list[int]:
    """About nine pools from the widest step to one in which nothing is lost, and the chosen one."""
    first, last = max(1, reuse.widest_step), max(1, reuse.widest_step, int(reuse.depths.max(initial=0)) + 1)
    return spread(first, last, chosen)


def check_blocks(kv: KvTrace | None, blocks: int | None) -> None:
    """`ConfigError` if pools of blocks are asked for and there are no references, or a pool has no block."""
    if blocks is None:
        return
    if kv is None or not len(kv.blocks):
        raise ConfigError("the trace has no KV references, so --kv-blocks says nothing; leave it out")
    if blocks < 1:
        raise ConfigError(f"a KV pool of {blocks} blocks holds nothing; give 1 or more")


def kv_table(kv: KvTrace, reuse: KvReuse, rows: Iterable[KvRow], chosen: int | None) -> Any:
    """Hits and capacity misses; what was never there before, or is computed twice, is told beside."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"KV blocks of {kv.block_tokens} tokens, by last use",
        caption=f"{len(kv.blocks):,} references: {reuse.returns:,} come back to a block, {reuse.new_blocks:,} are new, "
        f"{reuse.computed_twice:,} computed twice; recorded with {kv.pool_blocks:,} blocks",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for heading in ("blocks", "KV tokens", "hits", "capacity misses", "miss ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row.blocks:,}",
            f"{row.blocks * kv.block_tokens:,}",
            f"{row.hits:,}",
            f"{row.capacity_misses:,}",
            f"{row.capacity_misses / max(reuse.returns, 1):.1%}",
            style="bold" if row.blocks == chosen else None,
        )
    return table


def kv_dict(kv: KvTrace, reuse: KvReuse, rows: Iterable[KvRow]) -> dict[str, Any]:
    """The same for a program."""
    return {
        "block_tokens": kv.block_tokens,
        "pool_blocks": kv.pool_blocks,
        "references": len(kv.blocks),
        "returns": reuse.returns,
        "new_blocks": reuse.new_blocks,
        "computed_twice": reuse.computed_twice,
        "preemptions": len(kv.preemptions),
        "table": [
            {**row._asdict(), "kv_tokens": row.blocks * kv.block_tokens, "miss_ratio": reuse.lost_share(row.blocks)}
            for row in rows
        ],
    }
