"""`wisp serve MODEL`: vLLM's OpenAI server with some of the experts in fast memory."""

from typing import Annotated, Literal

import typer

from wisp.cli.preflight import check_serve
from wisp.policies import POLICIES


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Checkpoint folder, or a name that vLLM can load.")],
    expert_slots: Annotated[
        str | None, typer.Option(metavar="N", help="Experts of each layer to keep in fast memory.")
    ] = None,
    policy: Annotated[str, typer.Option(help=f"Who is evicted: {', '.join(POLICIES)}.")] = POLICIES[0],
    page_lock: Annotated[
        Literal["auto", "require", "off"],
        typer.Option(help="Page-lock the backing store for a GPU: if possible, or fail, or do not try."),
    ] = "auto",
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

    Every other flag goes to `vllm serve` as it is, such as --port 8000 or --max-model-len 4096. For the list of
    those: wisp serve MODEL --expert-slots 16 --help=all.
    """
    options = {
        "page_lock": page_lock,
        "decide": decide,
        "host_memory": host_memory,
        "recordable": recordable,
        "measure": measure,
    }
    settings = check_serve(model, expert_slots, device, context.args, policy=policy, **options)
    from wisp.engines.vllm.serve import serve as serve_vllm

    serve_vllm([model, *context.args], settings, device=device)
