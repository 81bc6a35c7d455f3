"""An engine whose core runs in this process: its requests and steps are in our hand, and it can be asked anything."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wisp.engines.vllm.layer import PagedRoutedExperts


def engine_args(model: str, flags: Sequence[str], settings: dict[str, Any] | None) -> Any:
    """vLLM's `EngineArgs` of a model and of flags of `vllm serve`; `settings` is the wisp configuration, None for none.

    What the flags themselves say of wisp does not count.
    """
    from vllm import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    args = EngineArgs.from_cli_args(parser.parse_args(["--model", model, *flags]))
    args.additional_config = {key: value for key, value in (args.additional_config or {}).items() if key != "wisp"}
    if settings is not None:
        args.additional_config["wisp"] = settings
    return args


def start(args: Any) -> Any:
    """vLLM's `LLMEngine` of these arguments."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm.v1.engine.llm_engine import LLMEngine

    return LLMEngine.from_engine_args(args)


def counters_of(engine: Any) -> dict[str, float] | None:
    """What paging has counted so far, waiting for the device, over layers and ranks; None for a stock engine."""
    from wisp.engines.vllm.counters import counter_files
    from wisp.engines.vllm.workers import publish_all
    from wisp.pager.counters import Counters, merged

    engine.collective_rpc(publish_all)
    files = counter_files.of_engine(engine.vllm_config.instance_id)
    return merged([Counters.open(file) for file in files]) if files else None


def paged_layers(engine: Any) -> "list[PagedRoutedExperts]":
    """The layers with experts of an engine of one rank, in their order."""
    from wisp.engines.vllm.layer import PagedRoutedExperts

    (layers,) = engine.apply_model(
        lambda model: [module for module in model.modules() if isinstance(module, PagedRoutedExperts)]
    )
    return list(layers)
