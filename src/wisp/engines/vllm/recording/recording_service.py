"""Recording as a method of vLLM's `EngineCore`, which its front end calls as it calls vLLM's own.

One recording at a time. Answers are plain values, because vLLM passes them on without knowing types of ours, and
errors are answers: vLLM would turn an exception into a text of its own.
"""

import secrets
from typing import Any

from wisp.engines.vllm.recording.engine_recorder import EngineRecorder, RecordingLimits
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import RecordingError, WispError

METHOD = "wisp_recording"
"""Of `EngineCore`, by which `call_utility` finds it."""

LIMITS = RecordingLimits(held_bytes=256 << 20, idle_seconds=60.0)
"""2.8 million blocks seen, or 300,000 steps of 48 layers of 128 experts that were not taken."""

_PLACE = "_wisp_recording"


def install() -> None:
    """Give `EngineCore` the method; it does nothing unless called."""
    from vllm.v1.engine.core import EngineCore

    EngineCore.wisp_recording = recording


def recording(core: Any, command: str, ticket: str = "") -> dict[str, Any]:
    """Answer `start`, `take` or `finish`; all but the first need the ticket that the first has given.

    `take` and `finish` give what was recorded since the last call as `piece`, the bytes of a `Recording`, or None;
    `seconds`, which recording has cost; and `ended`, why the recording has ended, if it has. `finish` takes
    everything and ends it.
    An `error` stands alone in its answer.
    """
    try:
        return _COMMANDS[command](core, ticket)
    except WispError as error:
        return {"error": str(error)}


def _start(core: Any, _ticket: str) -> dict[str, Any]:
    settings = WispSettings.of(core.vllm_config)
    if settings is None or not settings.recordable:
        raise RecordingError(
            "this server does not let itself be recorded; start it with `wisp serve MODEL --recordable`"
        )
    running: tuple[str, EngineRecorder] | None = getattr(core, _PLACE, None)
    if running is not None:
        if running[1].ended is None and not running[1].is_abandoned:
            raise RecordingError(
                "this server is being recorded already; wait until that has ended (it does so by itself "
                f"{LIMITS.idle_seconds:.0f} s after its client has gone)"
            )
        _end(core)
    ticket = secrets.token_hex(8)
    setattr(core, _PLACE, (ticket, EngineRecorder(core, LIMITS)))
    return {"ticket": ticket}


def _take(core: Any, ticket: str) -> dict[str, Any]:
    return _answer(core, ticket, last=False)


def _finish(core: Any, ticket: str) -> dict[str, Any]:
    answer = _answer(core, ticket, last=True)
    _end(core)
    return answer


def _answer(core: Any, ticket: str, *, last: bool) -> dict[str, Any]:
    recorder = _recorder(core, ticket)
    try:
        piece = recorder.take(last=last or recorder.ended is not None)
    except WispError:
        _end(core)
        raise
    with recorder.clocked():
        packed = None if piece is None else piece.to_bytes()
    return {"piece": packed, "seconds": recorder.seconds, "ended": recorder.ended}


def _recorder(core: Any, ticket: str) -> EngineRecorder:
    running: tuple[str, EngineRecorder] | None = getattr(core, _PLACE, None)
    if running is None or not secrets.compare_digest(running[0], ticket):
        raise RecordingError("this recording is over: another has begun since, or it had failed; record anew")
    return running[1]


def _end(core: Any) -> None:
    vars(core).pop(_PLACE)[1].stop()


_COMMANDS = {"start": _start, "take": _take, "finish": _finish}
