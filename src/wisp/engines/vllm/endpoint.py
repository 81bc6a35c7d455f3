"""Routes of vLLM's API server, as `protocol` describes them: what the settings allow, and no others."""

import json
from argparse import Namespace
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from wisp.engines.vllm import failure
from wisp.engines.vllm.metering import meter_service
from wisp.engines.vllm.protocol import CURVES, HEADER, RECORDINGS, REFUSED
from wisp.engines.vllm.recording import recording_service
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import UnsupportedError

recordings = APIRouter()
curves = APIRouter()


class WispEndpoint:
    """One of vLLM's endpoint plug-ins."""

    name = "wisp"
    required_tasks = ("generate",)

    def __init__(self, settings: WispSettings) -> None:
        self._settings = settings

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes."""
        if self._settings.recordable:
            app.include_router(recordings)
        if self._settings.measure:
            app.include_router(curves)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Let the meters begin; vLLM calls this once its engine is ready.

        Raises:
            UnsupportedError: they cannot, so `measure` would be without effect.
        """
        if not self._settings.measure:
            return
        answer = await engine_client.engine_core.call_utility_async(meter_service.METHOD)
        with failure.handed_over():
            if "error" in answer:
                raise UnsupportedError(f"measure is set, but {answer['error']}")


@recordings.post(RECORDINGS)
async def start(request: Request) -> Response:
    """Begin a recording."""
    return _json(await _ask(request, recording_service.METHOD, "start"))


@recordings.post(RECORDINGS + "/{ticket}/take")
async def take(request: Request, ticket: str) -> Response:
    """What was recorded since the last call."""
    return _piece(await _ask(request, recording_service.METHOD, "take", ticket))


@recordings.post(RECORDINGS + "/{ticket}/finish")
async def finish(request: Request, ticket: str) -> Response:
    """The rest, and the end."""
    return _piece(await _ask(request, recording_service.METHOD, "finish", ticket))


@curves.get(CURVES)
async def read_curves(request: Request) -> Response:
    """What the meters say."""
    return _json(await _ask(request, meter_service.METHOD))


async def _ask(request: Request, method: str, *words: str) -> dict[str, Any]:
    """The engine's core, wherever it runs."""
    client = request.app.state.engine_client.engine_core
    answer: dict[str, Any] = await client.call_utility_async(method, *words)
    return answer


def _json(answer: dict[str, Any]) -> Response:
    return JSONResponse(answer, status_code=REFUSED if "error" in answer else 200)


def _piece(answer: dict[str, Any]) -> Response:
    if "error" in answer:
        return _json(answer)
    piece = answer.pop("piece")
    return Response(piece or b"", media_type="application/octet-stream", headers={HEADER: json.dumps(answer)})
