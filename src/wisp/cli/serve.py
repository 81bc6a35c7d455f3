"""`wisp serve MODEL`: vLLM's OpenAI server with some of the experts in fast memory."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from wisp.cli.preflight import check_serve, usual_workload
from wisp.policies import POLICIES


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Checkpoint folder, or a name that vLLM can load.")],
    expert_slots: Annotated[
        str | None, typer.Option(metavar="N", help="Experts of each layer to keep in fast memory.")
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="What the engine may take in all, such as 24GiB: divided between experts and KV."
        ),
    ] = None,
    conversations: Annotated[
        int | None, typer.Option(metavar="N", help="Conversations that take turns; for --gpu-memory.", min=1)
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Recorded routing of this model; for --gpu-memory.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Measured rates of this machine; for --gpu-memory.")
    ] = None,
    policy: Annotated[str, typer.Option(help=f"Who is evicted: {', '.join(POLICIES)}.")] = POLICIES[0],
    page_lock: Annotated[
        Literal["auto", "require", "off"],
        typer.Option(help="Page-lock the backing store for a GPU: if possible, or fail, or do not try."),
    ] = "auto",
    backing_store: Annotated[
        Literal["memory", "checkpoint"],
        typer.Option(help="Where all experts are: in memory of this server's own, or in the checkpoint's files."),
    ] = "memory",
    decide: Annotated[
        Literal["auto", "device", "host"],
        typer.Option(help="Where paging is decided: in CUDA graphs on the device (lru only), or on the host."),
    ] = "auto",
    host_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Host memory to count on, such as 100GiB; what is free if left.")
    ] = None,
    recordable: Annotated[
        bool, typer.Option("--recordable", help="Let clients record routing and KV references: wisp record URL.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Meter what other numbers of slots and KV blocks would miss: wisp stats.")
    ] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="Fail unless vLLM would serve on this device.")
    ] = "auto",
) -> None:
    """Serve MODEL with --expert-slots of each layer's experts in fast memory and all of them in host memory.

    With --gpu-memory in its place the engine measures what it takes at its start, divides the rest between experts
    and KV as wisp plan does, and says why; with both, KV gets what is left. On a CPU, --gpu-memory is host memory for
    slots and KV.

    Every other flag goes to `vllm serve` as it is, such as --port 8000 or --max-model-len 4096. For the list of
    those: wisp serve MODEL --expert-slots 16 --help=all.
    """
    args = list(context.args)
    options = {
        "page_lock": page_lock,
        "backing_store": backing_store,
        "decide": decide,
        "host_memory": host_memory,
        "recordable": recordable,
        "measure": measure,
        "gpu_memory": gpu_memory,
        **planning_options(conversations, trace, calibration),
    }
    settings = check_serve(model, expert_slots, device, args, policy=policy, **options)
    if settings.plans:
        added = usual_workload(model, args, conversations)
        if added:
            typer.echo(f"wisp: planning for {' '.join(added)}, for nothing else is said", err=True)
        args += added
    from wisp.engines.vllm.serve import serve as serve_vllm

    serve_vllm([model, *args], settings, device=device)


def planning_options(conversations: int | None, trace: Path | None, calibration: Path | None) -> dict[str, Any]:
    """Settings for the division of a budget, the files looked at: the engine would read them minutes later."""
    if trace is not None:
        from wisp.recording import Recording

        Recording.load(trace)
    if calibration is not None:
        from wisp.allocator import Calibration

        Calibration.load(calibration)
    files = {"trace": trace, "calibration": calibration}
    paths = {name: str(path.absolute()) for name, path in files.items() if path is not None}
    return {"conversations": conversations, "trace": None, "calibration": None, **paths}
