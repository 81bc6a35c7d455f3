"""`wisp plan MODEL`: how to divide a GPU's memory between experts and KV, from a `config.json` alone."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wisp.allocator.machine import cpu_name, gpu_bytes, gpu_name
from wisp.allocator.workload import USUAL_CONTEXT, USUAL_SEQUENCES, usual_sequences
from wisp.errors import ConfigError, UnsupportedError
from wisp.units import format_bytes, parse_budget

if TYPE_CHECKING:
    from wisp.allocator import Calibration, ModelShape
    from wisp.allocator.question import Question
    from wisp.recording import Recording


def plan(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A config.json, the folder that holds one, or a downloaded model's name."),
    ],
    gpu_memory: Annotated[str, typer.Option(metavar="SIZE", help="What the engine may take in all, such as 24GiB.")],
    max_model_len: Annotated[
        int | None, typer.Option(metavar="N", help=f"Longest sequence in tokens; {USUAL_CONTEXT} if left.")
    ] = None,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(metavar="N", help=f"Sequences at once; {USUAL_SEQUENCES} if left, or fewer --conversations."),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of a prefill step; as --max-model-len, 2048 to 8192.")
    ] = None,
    conversations: Annotated[
        int | None,
        typer.Option(metavar="N", help="Conversations that take turns, by a prior; as recorded or --max-num-seqs."),
    ] = None,
    backing_store: Annotated[
        Literal["memory", "checkpoint"],
        typer.Option(help="Where all experts are; beside the checkpoint's files a step needs rows on the GPU too."),
    ] = "memory",
    kv_cache_dtype: Annotated[str, typer.Option(metavar="TYPE", help="auto (16 bits) or fp8.")] = "auto",
    engine_overhead: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What the engine takes beside weights, activations and KV.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A recording of this model: its routing and KV references.")
    ] = None,
    calibration: Annotated[Path | None, typer.Option(metavar="FILE", help="Measured rates of this machine.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")] = False,
) -> None:
    """Show where each byte of --gpu-memory goes, what every split would give, which one to take, and why."""
    from wisp.allocator.budget import ENGINE_OVERHEAD_BYTES
    from wisp.allocator.calibration import STATED
    from wisp.allocator.kv_choice import chosen_kv
    from wisp.allocator.model_shape import read_model_shape
    from wisp.allocator.plan import make_plan
    from wisp.allocator.question import Question
    from wisp.allocator.workload import Workload
    from wisp.cli.hub_cache import config_of
    from wisp.cli.plan_report import as_dict, print_plan, serve_line
    from wisp.recording import Recording

    total_bytes = parse_budget(gpu_memory, "--gpu-memory")
    overhead = ENGINE_OVERHEAD_BYTES if engine_overhead is None else parse_budget(engine_overhead, "--engine-overhead")
    shape = read_model_shape(config_of(model))
    in_files = backing_store == "checkpoint"
    if in_files and shape.expert_format.is_quantised:
        raise UnsupportedError(
            f"--backing-store is checkpoint, but {shape.expert_format.name} experts are laid out anew for their "
            f"kernel, so that the files do not hold what it takes; leave --backing-store out"
        )
    measured = chosen_rates(shape, calibration)
    rates = measured or STATED
    if rates.device_bytes is not None and total_bytes > rates.device_bytes:
        raise ConfigError(
            f"--gpu-memory is {format_bytes(total_bytes)} but {rates.machine} has {format_bytes(rates.device_bytes)}; "
            f"give less, or leave out the calibration of another machine"
        )
    context = min(USUAL_CONTEXT, shape.longest_context or USUAL_CONTEXT) if max_model_len is None else max_model_len
    sequences = usual_sequences(conversations) if max_num_seqs is None else max_num_seqs
    workload = Workload.typical(context, sequences, conversations=conversations, chunk=max_num_batched_tokens)
    question = Question(shape, total_bytes, workload, kv_cache_dtype, rates, overhead, in_files)
    recording = None if trace is None else Recording.load(trace)
    kv = chosen_kv(question, recording, is_prior_asked_for=conversations is not None)
    answer = make_plan(question, None if recording is None else recording.phase("auto"), kv)
    warnings = _warnings(question, recording, is_stated=measured is None)
    for warning in warnings:
        typer.echo(f"wisp: warning: {warning}", err=True)
    line = serve_line(model, answer)
    if as_json:
        typer.echo(json.dumps(as_dict(answer, line, warnings), indent=1))
        return
    print_plan(answer, line, is_stated=measured is None)


def chosen_rates(shape: "ModelShape", file: Path | None) -> "Calibration | None":
    """The calibration that the user names, or the one that is kept of this machine's GPU and model; None if neither.

    Raises:
        ConfigError: the user names one of a CPU, whose memory is not what is planned here.
    """
    from wisp.allocator.calibration import Calibration
    from wisp.allocator.calibration_files import find

    if file is None:
        gpu = gpu_name()
        return None if gpu is None else find(gpu, str(shape))
    named = Calibration.load(file)
    named.check_device("cuda")
    return named


def _warnings(question: "Question", recording: "Recording | None", *, is_stated: bool) -> list[str]:
    from wisp.allocator.calibration_files import installed_versions, path_for

    shape = question.shape
    machine = gpu_name() or cpu_name()
    doubts = [] if is_stated else question.calibration.warnings(machine, str(shape), installed_versions())
    if is_stated and gpu_name() is None and path_for(machine, str(shape)).is_file():
        doubts.append(f"the calibration of {machine} is left aside: this plans a GPU's memory, by the stated costs")
    has = gpu_bytes()
    if has is not None and question.total_bytes > has:
        wanted = format_bytes(question.total_bytes)
        doubts.append(f"--gpu-memory is {wanted} but {gpu_name()} here has {format_bytes(has)}: it cannot serve this")
    if shape.expert_format.is_quantised:
        doubts.append(
            f"plans for experts of {shape.expert_format.name} were never compared with an engine: sizes are by "
            f"arithmetic, and vLLM's layout for its kernel may take more"
        )
    if recording and recording.expert_bytes not in (None, shape.expert_bytes):
        recorded = format_bytes(recording.expert_bytes or 0)
        doubts.append(f"the trace has experts of {recorded}, this model of {format_bytes(shape.expert_bytes)}")
    return [*doubts, *shape.notes]
