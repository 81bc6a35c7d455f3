"""`wisp record MODEL -o trace.npz`: routing and KV references of a running engine."""

from pathlib import Path
from typing import Annotated, Any

import typer

from wisp.errors import ConfigError, UnsupportedError
from wisp.policies import POLICIES


def record(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Checkpoint folder, or a name that vLLM can load.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="TRACE.npz", help="The trace to write.")],
    prompts: Annotated[
        Path | None,
        typer.Option(help="JSON with conversations, as demo/prompts.json, or text with one prompt a line."),
    ] = None,
    domain: Annotated[str | None, typer.Option(help="Only the conversations of this domain.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens to generate for each answer.", min=1)] = None,
    expert_slots: Annotated[
        str | None, typer.Option(metavar="N", help="Experts of each layer in fast memory; all, if left out.")
    ] = None,
    policy: Annotated[str, typer.Option(help=f"Who is evicted: {', '.join(POLICIES)}.")] = POLICIES[0],
) -> None:
    """Run MODEL on prompts and write which experts and KV blocks each step refers to.

    Routing does not depend on the slots, so one trace answers for every number of them. Further options go to vLLM.
    Paging is decided on the host, so a GPU needs --enforce-eager.
    """
    if model.startswith(("http://", "https://")):
        raise UnsupportedError(
            f"{model} is a running server, which cannot be recorded yet; record the model itself, on prompts like "
            f"those that the server gets: wisp record MODEL --prompts FILE -o {output}"
        )
    from wisp.cli.preflight import check_serve
    from wisp.cli.trace_file import check_output
    from wisp.conversations import plain_script, read_script

    check_output(output)
    if prompts is None and domain is not None:
        raise ConfigError("--domain chooses among the conversations of a file; add --prompts FILE")
    script = read_script(prompts, domain=domain, max_tokens=max_tokens) if prompts is not None else None
    slots = expert_slots if expert_slots is not None else _all_experts(model)
    check_serve(model, slots, "auto", context.args, policy=policy, decide="host")
    from wisp.engines.vllm.recorded_run import RunRequest, record_run
    from wisp.engines.vllm.verify.workload import TEXTS

    settings = {"expert_slots": int(slots), "policy": policy, "decide": "host"}
    script = script or plain_script(TEXTS, max_tokens or 32)
    request = RunRequest(model, settings, script, str(output.absolute()), tuple(context.args))
    from rich.console import Console

    console = Console()
    with console.status("starting the engine, answering, recording"):
        report = record_run(request)
    _tell(console, output, report)


def _all_experts(model: str) -> str:
    """As many slots as a layer of this local checkpoint has experts."""
    from wisp.cli.checkpoint import EXPERT_COUNTS, local_folder, read_config

    folder = local_folder(model)
    config = {} if folder is None else read_config(folder)
    counts = [config[name] for name in EXPERT_COUNTS if isinstance(config.get(name), int)]
    if not counts:
        raise ConfigError(f"how many experts a layer of {model} has is not known here; add --expert-slots N")
    return str(counts[0])


def _tell(console: Any, output: Path, report: Any) -> None:
    from wisp.kv_trace import KvEvent
    from wisp.pager.counters import hit_ratio
    from wisp.recording import Recording
    from wisp.units import format_seconds

    recording = Recording.load(output)
    routing, kv, prefill = recording.routing, recording.kv, recording.prefill_tokens
    assert routing.tokens is not None
    assert prefill is not None
    assert kv is not None
    lines = (
        f"{output}: {routing.steps:,} steps of {routing.layers} layers of {routing.num_experts} experts",
        f"tokens: {prefill.sum():,} of prompts, {routing.tokens.sum() - prefill.sum():,} decoded",
        f"experts: {report.counters['references']:,.0f} references, {report.counters['faults']:,.0f} faults, "
        f"hit ratio {hit_ratio(report.counters):.1%}",
        f"KV blocks of {kv.block_tokens} tokens: {kv.count(KvEvent.HIT):,} prefix hits, "
        f"{kv.count(KvEvent.INSERT):,} new, {kv.count(KvEvent.CAPACITY_MISS):,} lost to capacity, "
        f"{kv.count(KvEvent.DUPLICATE):,} computed twice; {len(kv.preemptions):,} preemptions",
        f"recording took {format_seconds(report.recorder_seconds)} of {format_seconds(report.seconds)}, "
        f"{report.recorder_seconds / report.seconds:.2%}",
    )
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
