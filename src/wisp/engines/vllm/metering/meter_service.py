"""Metering as a method of vLLM's `EngineCore`, which its front end calls as it calls vLLM's own."""

from typing import Any

from wisp.engines.vllm.metering.meters import Meters
from wisp.errors import WispError

METHOD = "wisp_meters"
"""Of `EngineCore`, by which `call_utility` finds it."""

_PLACE = "_wisp_meters"


def install() -> None:
    """Give `EngineCore` the method; it does nothing unless called."""
    from vllm.v1.engine.core import EngineCore

    EngineCore.wisp_meters = meters


def meters(core: Any) -> dict[str, Any]:
    """What the meters say, which begin with the first call; an `error` stands alone."""
    try:
        running: Meters | None = getattr(core, _PLACE, None)
        if running is None:
            running = Meters(core)
            setattr(core, _PLACE, running)
        return running.read()
    except WispError as error:
        return {"error": str(error)}
