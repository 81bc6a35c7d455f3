"""`wisp calibrate MODEL`: the rates of this machine with this model, for `wisp plan` and `wisp serve --gpu-memory`."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wisp.errors import ConfigError

if TYPE_CHECKING:
    from wisp.allocator import Calibration, ModelShape
    from wisp.engines.vllm.calibrate.request import CalibrationReport

STREAMS, CONTEXT = 8, 4096


def calibrate(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Checkpoint folder, or a downloaded model's name.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="In place of the usual file in the cache.")
    ] = None,
    expert_slots: Annotated[
        int | None, typer.Option(metavar="N", help="Slots while measuring; twice top-k if left.", min=1)
    ] = None,
) -> None:
    """Measure copies, decode steps with and without faults, and prefills of MODEL on this machine, and keep the rates.

    Takes a minute or two beside the start of the engine; nothing else should run meanwhile. Options that `wisp serve`
    will be given, such as --enforce-eager, belong here too. Further options go to vLLM.
    """
    from wisp.allocator.model_shape import read_model_shape
    from wisp.cli.hub_cache import config_of
    from wisp.cli.preflight import check_serve
    from wisp.cli.trace_file import check_output
    from wisp.engines.vllm.calibrate.request import CalibrationRequest

    if output is not None:
        check_output(output)
    shape = read_model_shape(config_of(model))
    slots = expert_slots or min(2 * shape.top_k, max(shape.top_k, shape.num_experts // 2))
    if slots < shape.top_k:
        raise ConfigError(f"--expert-slots is {slots}, but a token needs {shape.top_k} experts; give so many or more")
    check_serve(model, str(slots), "auto", context.args, policy="lru")
    if output is None:
        check_output(_usual_folder() / "calibration")
    flags = [*context.args, *_flags(context.args, shape)]
    request = CalibrationRequest(
        model=model,
        settings={"expert_slots": slots},
        moe_layers=shape.moe_layers,
        num_experts=shape.num_experts,
        top_k=shape.top_k,
        expert_bytes=shape.expert_bytes,
        engine_flags=tuple(flags),
    )
    from rich.console import Console

    from wisp.cli.progress import working
    from wisp.engines.vllm.calibrate.run import calibration_run

    console = Console()
    with working(console, "starting the engine") as tell:
        report = calibration_run(request, tell)
    found = _calibration(shape, report)
    path = _save(found, output)
    _tell(console, path, found)


def _usual_folder() -> Path:
    """Where calibrations are kept, made if it is not there: not only once everything has been measured."""
    from wisp.allocator.calibration_files import directory

    folder = directory()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}); name a file for the rates with -o") from error
    return folder


def _flags(args: list[str], shape: "ModelShape") -> list[str]:
    """What the user has left open: enough sequences and tokens to measure with, and KV for these alone."""
    from wisp.cli.forwarding import flag_value

    longest = min(CONTEXT, shape.longest_context or CONTEXT)
    usual = {
        "--max-num-seqs": STREAMS,
        "--max-model-len": longest,
        "--max-num-batched-tokens": longest,
        "--kv-cache-memory-bytes": (STREAMS + 1) * (longest + 256) * shape.kv_bytes_a_token(),
    }
    return [word for flag, value in usual.items() if flag_value(args, flag) is None for word in (flag, str(value))]


def _calibration(shape: "ModelShape", report: "CalibrationReport") -> "Calibration":
    from wisp.allocator import Calibration
    from wisp.allocator.calibration_files import installed_versions
    from wisp.allocator.machine import cpu_name
    from wisp.allocator.rates_fit import prefill_seconds, rates

    found, notes = rates(shape, report.measured)
    return Calibration(
        machine=report.gpu or cpu_name(),
        model=str(shape),
        date=datetime.now(tz=UTC).strftime("%Y-%m-%d"),
        device="cpu" if report.gpu is None else "cuda",
        versions=installed_versions(),
        engine=report.engine,
        device_bytes=report.device_bytes,
        prefill=prefill_seconds(report.measured, shape),
        notes=tuple(notes),
        measured=asdict(report.measured),
        **found,
    )


def _save(found: "Calibration", output: Path | None) -> Path:
    from wisp.allocator.calibration_files import path_for

    path = output
    if path is None:
        path = path_for(found.machine, found.model)
    found.save(path)
    return path


def _tell(console: Any, path: Path, found: "Calibration") -> None:
    from wisp.units import format_bytes, format_seconds

    measured = found.measured
    steps = [
        f"{point['streams']} at {point['context']} tokens, {point['experts']:.0f} experts: "
        f"{format_seconds(point['seconds'])}"
        for point in measured["decode"]
        if point["is_pinned"]
    ]
    copies = [
        f"{format_bytes(point['nbytes'])} ({point['by']}) {format_seconds(point['seconds'])}"
        for point in measured["copies"]
    ]
    prefill = [f"{tokens} tokens {format_seconds(seconds)}" for tokens, seconds in found.prefill]
    rate = format_bytes(int(found.fault_bytes_per_second))
    lines = [
        f"{path}: {found.machine}, {found.model}, {found.engine}, {measured['expert_slots']} slots",
        f"a decode step without faults, of so many streams: {'; '.join(steps)}",
        f"faults read {rate} a second; paging a layer without misses takes {format_seconds(found.decide_seconds)}",
        f"copies: {', '.join(copies)}",
        f"prefill without streaming: {', '.join(prefill)}",
        *found.notes,
    ]
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
