"""`wisp plan MODEL`: how to divide a GPU's memory between experts and KV, from a `config.json` alone."""

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wisp.errors import ConfigError
from wisp.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from wisp.allocator.kv_demand import KvDemand
    from wisp.allocator.question import Question
    from wisp.recording import Recording

USUAL_CONTEXT, USUAL_SEQUENCES = 8192, 4
_LEAST_BARE_NUMBER = 1 << 20
_GPUS = Path("/proc/driver/nvidia/gpus")


def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A config.json, or the folder that holds one.")],
    gpu_memory: Annotated[str, typer.Option(metavar="SIZE", help="What the engine may take in all, such as 24GiB.")],
    max_model_len: Annotated[
        int | None, typer.Option(metavar="N", help=f"Longest sequence in tokens; {USUAL_CONTEXT} if left.")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(metavar="N", help="Sequences at once.")] = USUAL_SEQUENCES,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of a prefill step; as --max-model-len, 2048 to 8192.")
    ] = None,
    conversations: Annotated[
        int | None,
        typer.Option(metavar="N", help="Conversations that take turns, by a prior; as recorded or --max-num-seqs."),
    ] = None,
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
    from wisp.allocator.calibration import STATED, Calibration
    from wisp.allocator.model_shape import read_model_shape
    from wisp.allocator.plan import make_plan
    from wisp.allocator.question import Question
    from wisp.allocator.workload import Workload
    from wisp.cli.plan_report import as_dict, print_plan, serve_line
    from wisp.recording import Recording

    total_bytes = memory_bytes(gpu_memory, "--gpu-memory")
    overhead = ENGINE_OVERHEAD_BYTES if engine_overhead is None else memory_bytes(engine_overhead, "--engine-overhead")
    rates = STATED if calibration is None else Calibration.load(calibration)
    if rates.device_bytes is not None and total_bytes > rates.device_bytes:
        raise ConfigError(
            f"--gpu-memory is {format_bytes(total_bytes)} but {rates.machine} has {format_bytes(rates.device_bytes)}; "
            f"give less, or leave out the calibration of another machine"
        )
    shape = read_model_shape(model)
    context = min(USUAL_CONTEXT, shape.longest_context or USUAL_CONTEXT) if max_model_len is None else max_model_len
    workload = Workload.typical(context, max_num_seqs, conversations=conversations, chunk=max_num_batched_tokens)
    question = Question(shape, total_bytes, workload, kv_cache_dtype, rates, overhead)
    recording = None if trace is None else Recording.load(trace)
    kv = _kv_demand(question, recording, is_prior_asked_for=conversations is not None)
    answer = make_plan(question, None if recording is None else recording.phase("auto"), kv)
    warnings = _warnings(question, recording, is_stated=calibration is None)
    for warning in warnings:
        typer.echo(f"wisp: warning: {warning}", err=True)
    line = serve_line(model, answer)
    if as_json:
        typer.echo(json.dumps(as_dict(answer, line, warnings), indent=1))
        return
    print_plan(answer, line, is_stated=calibration is None)


def _kv_demand(question: "Question", recording: "Recording | None", *, is_prior_asked_for: bool) -> "KvDemand":
    """As recorded, unless the trace has no KV references or the prior was asked for; that is told."""
    from wisp.allocator.kv_demand import PriorKv, traced_kv

    if recording is None:
        return PriorKv(question.layout, question.workload)
    if is_prior_asked_for:
        return PriorKv(question.layout, question.workload, ", as --conversations is given")
    if recording.kv is None or not len(recording.kv.blocks):
        return PriorKv(question.layout, question.workload, ", as the trace has no KV references")
    return traced_kv(recording, question.layout, question.workload)


def memory_bytes(text: str, option: str) -> int:
    """The bytes that an option names; a bare number below 1 MiB is refused, for nobody means "24" bytes."""
    count = parse_bytes(text)
    if text.strip().isdigit() and count < _LEAST_BARE_NUMBER:
        raise ConfigError(f"{option} {text} would be {text} bytes; write the unit, as in {option} {text}GiB")
    return count


def this_machine() -> str | None:
    """The first GPU by its driver's name; None without one. Asks no library, which would take seconds to load."""
    for file in sorted(_GPUS.glob("*/information")):
        for row in file.read_text().splitlines():
            if row.startswith("Model:"):
                return row.removeprefix("Model:").strip()
    return None


def this_machines_bytes() -> int | None:
    """The memory of its first GPU by `nvidia-smi`; None without a GPU, or where that does not answer."""
    if this_machine() is None:
        return None
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", "--id=0"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        return int(told.split()[0]) << 20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _warnings(question: "Question", recording: "Recording | None", *, is_stated: bool) -> list[str]:
    shape = question.shape
    doubts = [] if is_stated else question.calibration.warnings(this_machine(), str(shape))
    has = this_machines_bytes()
    if has is not None and question.total_bytes > has:
        wanted = format_bytes(question.total_bytes)
        doubts.append(
            f"--gpu-memory is {wanted} but {this_machine()} here has {format_bytes(has)}: it cannot serve this"
        )
    if shape.expert_format.block or shape.expert_format.weight_bits < 16:
        doubts.append(f"wisp serve pages bf16 and fp16 experts so far, not {shape.expert_format.name}: arithmetic only")
    if recording and recording.expert_bytes not in (None, shape.expert_bytes):
        recorded = format_bytes(recording.expert_bytes or 0)
        doubts.append(f"the trace has experts of {recorded}, this model of {format_bytes(shape.expert_bytes)}")
    return [*doubts, *shape.notes]
