"""`wisp record MODEL|URL -o trace.npz`: routing and KV references of an engine, our own or a running server's."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from wisp.conversations import Script, plain_script, read_script
from wisp.errors import ConfigError, NotDownloadedError, RecordingError
from wisp.policies import POLICIES
from wisp.recording import Recording

_URL = ("http://", "https://")
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+/?")


def record(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL|URL", help="Checkpoint folder or name, or a server: http://localhost:8000.")
    ],
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
    policy: Annotated[str | None, typer.Option(help=f"Who is evicted: {', '.join(POLICIES)}.")] = None,
    decide: Annotated[
        Literal["auto", "device", "host"] | None, typer.Option(help="Where paging is decided, as for wisp serve.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Of a URL: how long to record.", min=0.1)] = None,
    steps: Annotated[int | None, typer.Option(help="Of a URL: how many steps to record.", min=1)] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Of a URL: the server's key.", envvar="VLLM_API_KEY", show_envvar=True)
    ] = None,
) -> None:
    """Write which experts and KV blocks each step refers to: of MODEL, run on prompts, or of the server at URL.

    A server must have been started with --recordable. It is recorded for --seconds, until --steps, or until Ctrl-C,
    which keeps what was recorded.

    Of a MODEL, further options go to vLLM. Routing does not depend on the slots, so one trace answers for every number
    of them.
    """
    from wisp.cli.trace_file import check_output

    check_output(output)
    of_model = {
        "--prompts": prompts,
        "--domain": domain,
        "--max-tokens": max_tokens,
        "--expert-slots": expert_slots,
        "--policy": policy,
        "--decide": decide,
    }
    if model.startswith(_URL):
        given = [name for name, value in of_model.items() if value is not None] + list(context.args)
        if given:
            raise ConfigError(f"{given[0]} is for a MODEL that is run; {model} is a server that runs: leave it out")
        _record_server(model, output, seconds, steps, api_key)
        return
    for name, value in {"--seconds": seconds, "--steps": steps}.items():
        if value is not None:
            raise ConfigError(f"{name} is for the URL of a server; a MODEL is recorded until its prompts are answered")
    if prompts is None and domain is not None:
        raise ConfigError("--domain chooses among the conversations of a file; add --prompts FILE")
    script = read_script(prompts, domain=domain, max_tokens=max_tokens) if prompts is not None else None
    if script is None:
        from wisp.engines.vllm.verify.workload import TEXTS

        script = plain_script(TEXTS, max_tokens or 32)
    slots = expert_slots if expert_slots is not None else _all_experts(model)
    settings = {"policy": policy or POLICIES[0], "decide": decide or "auto"}
    _record_model(model, output, context.args, script, slots, settings)


def _record_server(url: str, output: Path, seconds: float | None, steps: int | None, api_key: str | None) -> None:
    from rich.console import Console

    from wisp.cli.served_recording import record_server

    console = Console()
    with console.status(f"recording {url}; Ctrl-C ends it and keeps what was recorded") as status:
        served = record_server(
            url,
            seconds=seconds,
            steps=steps,
            api_key=api_key,
            progress=lambda so_far: status.update(f"recording {url}: {so_far.steps:,} steps; Ctrl-C ends it"),
        )
    recording = served.recording(steps)
    recording.save(output)
    _tell(console, output, recording, served.recorder_seconds, served.seconds)
    if served.failure is not None:
        raise RecordingError(
            f"{served.failure}; {output} holds the {recording.routing.steps:,} steps until then, and nothing after"
        )


def _record_model(
    model: str, output: Path, engine_flags: list[str], script: Script, slots: str, settings: dict[str, Any]
) -> None:
    from rich.console import Console

    from wisp.cli.preflight import check_serve

    check_serve(model, slots, "auto", engine_flags, **settings)
    from wisp.cli.progress import working
    from wisp.engines.vllm.recording.recorded_run import RunRequest, record_run

    settings = {"expert_slots": int(slots), **settings}
    request = RunRequest(model, settings, script, str(output.absolute()), tuple(engine_flags))
    console = Console()
    with working(console, "starting the engine, answering, recording"):
        report = record_run(request)
    _tell(console, output, Recording.load(output), report.recorder_seconds, report.seconds, report.counters)


def _all_experts(model: str) -> str:
    """As many slots as a layer of this checkpoint, which has to be here, has experts."""
    from wisp.cli.checkpoint import check_experts, expert_counts, local_folder, read_config
    from wisp.cli.hub_cache import config_of

    folder = local_folder(model)
    if _HOST_AND_PORT.fullmatch(model) and not Path(model).exists():
        raise ConfigError(f"{model} is no model; if a server runs there, write http://{model}")
    if folder is None:
        with suppress(NotDownloadedError):
            folder = config_of(model).parent
    counts = []
    if folder is not None:
        check_experts(folder, 1)
        counts = expert_counts(read_config(folder))
    if not counts:
        raise ConfigError(f"how many experts a layer of {model} has is not known here; add --expert-slots N")
    return str(counts[0])


def _tell(
    console: Any,
    output: Path,
    recording: Recording,
    recorder_seconds: float,
    seconds: float,
    counters: dict[str, float] | None = None,
) -> None:
    from wisp.kv_trace import KvEvent
    from wisp.pager.counters import hit_ratio
    from wisp.units import format_seconds

    routing, kv, prefill = recording.routing, recording.kv, recording.prefill_tokens
    assert routing.tokens is not None
    assert prefill is not None
    assert kv is not None
    experts = f"experts: {routing.widths().sum():,} references"
    if counters is not None:
        experts = (
            f"experts: {counters['references']:,.0f} references, {counters['faults']:,.0f} faults, "
            f"hit ratio {hit_ratio(counters):.1%}"
        )
    lines = (
        f"{output}: {routing.steps:,} steps of {routing.layers} layers of {routing.num_experts} experts",
        f"tokens: {prefill.sum():,} of prompts, {routing.tokens.sum() - prefill.sum():,} decoded",
        experts,
        f"KV blocks of {kv.block_tokens} tokens: {kv.count(KvEvent.HIT):,} prefix hits, "
        f"{kv.count(KvEvent.INSERT):,} new, {kv.count(KvEvent.CAPACITY_MISS):,} lost to capacity, "
        f"{kv.count(KvEvent.DUPLICATE):,} computed twice; {len(kv.preemptions):,} preemptions",
        f"recording took {format_seconds(recorder_seconds)} of {format_seconds(seconds)}, "
        f"{recorder_seconds / seconds:.2%}",
    )
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
