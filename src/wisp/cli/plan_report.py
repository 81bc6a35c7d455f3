"""A plan as text for people and as a dictionary for programs."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from wisp.allocator.explanation import why
from wisp.allocator.kv_demand import PriorKv
from wisp.allocator.plan import Plan
from wisp.allocator.prediction import Row
from wisp.cli.tables import show
from wisp.units import format_bytes, format_seconds

SHOWN_ROWS = 12
CAPTION = "seqs: of full length in KV; lost: histories recomputed; s/s: seconds lost a second"


def serve_line(model: str, answer: Plan) -> str:
    """The command that serves by this plan; of a MODEL to be named if a file of another name is all that was given."""
    path, workload = Path(model).expanduser(), answer.question.workload
    name = model
    if path.is_file():
        name = str(path.parent) if path.name == "config.json" else "MODEL"
    kv_bytes = answer.choice.candidate.kv_blocks * answer.budget.block_bytes
    words = ["wisp", "serve", name, "--expert-slots", answer.choice.candidate.expert_slots]
    words += ["--kv-cache-memory-bytes", kv_bytes, "--max-model-len", workload.context]
    words += ["--max-num-seqs", workload.sequences, "--max-num-batched-tokens", workload.chunk]
    if answer.question.kv_dtype != "auto":
        words += ["--kv-cache-dtype", answer.question.kv_dtype]
    if answer.question.in_files:
        words += ["--backing-store", "checkpoint"]
    return shlex.join(map(str, words))


def as_dict(answer: Plan, line: str, warnings: list[str]) -> dict[str, Any]:
    """The plan for a program; bytes, tokens and seconds, `seconds_lost` a second of the workload."""
    split, rates = answer.split, answer.question.calibration
    return {
        "model": str(answer.question.shape),
        "choice": _row_dict(answer.choice),
        "why": why(answer),
        "runner_up": _row_dict(answer.runner_up) if answer.runner_up else None,
        "table": [_row_dict(row) for row in answer.rows],
        "baselines": {name: _row_dict(row) for name, row in answer.baselines.items()},
        "value_of_128MiB": {"experts": split.value_of_more_experts, "kv": split.value_of_more_kv},
        "bytes": where_bytes_go(answer),
        "slot_bytes": answer.budget.slot_bytes,
        "block_bytes": answer.budget.block_bytes,
        "block_tokens": answer.layout.block_tokens,
        "floor": {"expert_slots": answer.budget.least_slots, "kv_blocks": answer.budget.floor_blocks},
        "workload": asdict(answer.kv.workload),
        "routing": answer.demand.source,
        "streams": answer.demand.streams,
        "kv_reuse": answer.kv.source,
        "costs": asdict(rates),
        "warnings": warnings,
        "serve": line,
    }


def where_bytes_go(answer: Plan) -> dict[str, int]:
    """Every byte of the budget, by kind."""
    budget, chosen = answer.budget, answer.choice.candidate
    slots, blocks = chosen.expert_slots * budget.slot_bytes, chosen.kv_blocks * budget.block_bytes
    parts = {**budget.fixed, "expert slots": slots, "KV blocks": blocks}
    return {**parts, "left over": budget.total_bytes - sum(parts.values())}


def _row_dict(row: Row) -> dict[str, Any]:
    chosen = row.candidate
    return {
        "expert_slots": chosen.expert_slots,
        "kv_tokens": row.kv_tokens,
        "kv_blocks": chosen.kv_blocks,
        "concurrency": row.concurrency,
        "hit_ratio": row.hit_ratio,
        "decode_tok_s": row.decode_tok_s,
        "decode_tok_s_all": row.decode_tok_s_all,
        "ttft_s": row.ttft_s,
        "ttft_lost_s": row.ttft_lost_s,
        "lost_share": row.lost_share,
        "seconds_lost": chosen.seconds_lost,
        "is_admissible": chosen.is_admissible,
    }


def print_plan(answer: Plan, line: str, *, is_stated: bool) -> None:
    """Where the bytes go, the table, the choice and why, what was assumed, and the command."""
    console = Console(highlight=False)
    question, split = answer.question, answer.split
    workload, rates = answer.kv.workload, question.calibration
    console.print(f"{question.shape}\n", soft_wrap=True)
    for kind, count in where_bytes_go(answer).items():
        console.print(f"  {kind:<28}{format_bytes(count):>11}", soft_wrap=True)
    console.print(f"  {'in all':<28}{format_bytes(answer.budget.total_bytes):>11}", soft_wrap=True)
    console.print(
        f"  one more slot in every layer {format_bytes(answer.budget.slot_bytes)}; one KV block of "
        f"{answer.layout.block_tokens} tokens {format_bytes(answer.budget.block_bytes)}",
        soft_wrap=True,
    )
    show(console, _table(answer))
    more = [f"{format_seconds(each)}" for each in (split.value_of_more_experts, split.value_of_more_kv)]
    others = "; ".join(_baseline(name, row) for name, row in answer.baselines.items())
    told = [
        f"choice: {why(answer)}.",
        f"128MiB more would save {more[0]} a second of work as slots, {more[1]} as KV.",
        f"others: {others}.",
        f"a turn: {workload.new} new and {workload.output} generated tokens on {workload.history} of history, "
        f"prefilled {workload.chunk} at a time; {_conversations(answer)}{workload.sequences} at once.",
        f"routing: {answer.demand.source}.",
        f"KV reuse: {answer.kv.source}.",
        f"costs: {'stated' if is_stated else 'calibrated'} ones, measured on {rates.machine} with {rates.model} on "
        f"{rates.date}.",
        *(f"of the calibration: {note}." for note in rates.notes),
    ]
    for text in told:
        console.print(text, soft_wrap=True)
    console.print(f"\n{line}", soft_wrap=True)


def _conversations(answer: Plan) -> str:
    return f"{answer.kv.workload.conversations} conversations, " if isinstance(answer.kv, PriorKv) else ""


def _baseline(name: str, row: Row) -> str:
    chosen = row.candidate
    serves = f"loses {chosen.seconds_lost:.3g} s a second" if chosen.is_admissible else "cannot serve this"
    return f"{name} {chosen.expert_slots} slots, {row.kv_tokens:,} KV tokens, {serves}"


def _table(answer: Plan) -> Any:
    streams = f"{answer.demand.streams:.4g}"
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption=CAPTION)
    headings = ("slots", "KV tokens", "seqs", "hits", "tok/s 1", f"tok/s {streams}", "TTFT", "lost", "s/s", "")
    for heading in headings:
        result.add_column(heading, justify="right", no_wrap=True)
    for row in _shown(answer):
        mark = {id(answer.choice): "choice", id(answer.runner_up): "second"}.get(id(row), "")
        result.add_row(
            str(row.candidate.expert_slots),
            f"{row.kv_tokens:,}",
            _digits(row.concurrency, 1),
            f"{row.hit_ratio:.1%}",
            _digits(row.decode_tok_s, 1),
            _digits(row.decode_tok_s_all, 1),
            format_seconds(row.ttft_s),
            f"{row.lost_share:.0%}",
            f"{row.candidate.seconds_lost:.2f}",
            mark,
            style="bold" if mark == "choice" else "",
        )
    return result


def _digits(value: float, decimals: int) -> str:
    """With so many decimals, or none from 1,000 on, where they say nothing and a terminal has no room for them."""
    return f"{value:.{decimals}f}" if value < 1000 else f"{value:,.0f}"


def _shown(answer: Plan) -> list[Row]:
    """The choice, the runner-up, and some rows in between; --json has all."""
    rows = answer.rows
    every = max(1, -(-len(rows) // SHOWN_ROWS))
    kept = (answer.choice, answer.runner_up)
    return [row for place, row in enumerate(rows) if (len(rows) - 1 - place) % every == 0 or place == 0 or row in kept]
