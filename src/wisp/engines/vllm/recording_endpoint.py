"""Recording over HTTP: routes of vLLM's API server, as `recording_protocol` describes them."""

import json
from argparse import Namespace
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from wisp.engines.vllm.recording_protocol import HEADER, REFUSED, ROUTE
from wisp.engines.vllm.recording_service import METHOD

router = APIRouter()


class RecordingEndpoint:
    """One of vLLM's endpoint plug-ins."""

    name = "wisp"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes."""
        app.include_router(router)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Nothing to do: vLLM keeps its engine client in the state."""


@router.post(ROUTE)
async def start(request: Request) -> Response:
    """Begin a recording."""
    return _json(await _ask(request, "start"))


@router.post(ROUTE + "/{ticket}/take")
async def take(request: Request, ticket: str) -> Response:
    """What was recorded since the last call."""
    return _piece(await _ask(request, "take", ticket))


@router.post(ROUTE + "/{ticket}/finish")
async def finish(request: Request, ticket: str) -> Response:
    """The rest, and the end."""
    return _piece(await _ask(request, "finish", ticket))


async def _ask(request: Request, *words: str) -> dict[str, Any]:
    """The engine's core, wherever it runs."""
    client = request.app.state.engine_client.engine_core
    answer: dict[str, Any] = await client.call_utility_async(METHOD, *words)
    return answer


def _json(answer: dict[str, Any]) -> Response:
    return JSONResponse(answer, status_code=REFUSED if "error" in answer else 200)


def _piece(answer: dict[str, Any]) -> Response:
    if "error" in answer:
        return _json(answer)
    piece = answer.pop("piece")
    return Response(piece or b"", media_type="application/octet-stream", headers={HEADER: json.dumps(answer)})
