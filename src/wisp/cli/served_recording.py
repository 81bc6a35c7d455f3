"""Recording a running server from outside: start, take piece after piece, finish."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from wisp.cli.served_counters import server_root
from wisp.cli.server import answer_of, as_known, ask, key_headers
from wisp.engines.vllm.protocol import HEADER, RECORDINGS
from wisp.errors import RecordingError, WispError
from wisp.recording import Recording

TAKE_SECONDS = 1.0
"""Between one piece and the next. Each makes the engine wait for the steps that run, so not many times a second."""

TIMEOUT_SECONDS = 60.0
"""For an answer: the engine gives it between two steps, and one may be a long prompt's."""


@dataclass
class ServedRecording:
    """What has arrived of a recording."""

    pieces: list[Recording] = field(default_factory=list)
    seconds: float = 0.0
    """From the start to the last answer."""
    recorder_seconds: float = 0.0
    """That recording has cost the engine, by its own measure."""
    failure: str | None = None
    """Why there is no more of it than this, if it ended before it was asked to."""

    @property
    def steps(self) -> int:
        """In all pieces."""
        return sum(piece.routing.steps for piece in self.pieces)

    def recording(self, steps: int | None) -> Recording:
        """All pieces together, the first `steps` at most.

        Raises:
            RecordingError: no step has run.
        """
        if not self.pieces:
            raise RecordingError(
                self.failure or "no step ran while the server was recorded; send it requests in the meantime"
            )
        whole = Recording.join(self.pieces)
        return whole if steps is None else whole.part(0, steps)


def record_server(
    url: str,
    *,
    seconds: float | None,
    steps: int | None,
    api_key: str | None = None,
    progress: Callable[[ServedRecording], None] = lambda _: None,
) -> ServedRecording:
    """Record for so many seconds, until so many steps, or until Ctrl-C.

    Raises:
        RecordingError: it could not be started. What fails later is told in `failure`, beside what has arrived.
    """
    import httpx

    served = ServedRecording()
    with (
        httpx.Client(headers=key_headers(api_key), timeout=TIMEOUT_SECONDS, follow_redirects=True) as client,
        _interruptible() as interrupted,
    ):
        route = server_root(url) + RECORDINGS
        answer = answer_of(ask(client, "POST", route, option="recordable"))
        with as_known(route):
            ticket = answer["ticket"]
            if not isinstance(ticket, str):
                raise TypeError(f"the ticket is {ticket!r}")
        start = time.monotonic()
        try:
            while not _is_enough(served, steps) and served.failure is None:
                left = TAKE_SECONDS if seconds is None else min(TAKE_SECONDS, start + seconds - time.monotonic())
                if left <= 0 or interrupted.wait(left):
                    break
                _take(client, f"{route}/{ticket}/take", served)
                served.seconds = time.monotonic() - start
                progress(served)
            if served.failure is None:
                _take(client, f"{route}/{ticket}/finish", served)
                served.seconds = time.monotonic() - start
        except WispError as error:
            served.failure = str(error)
    return served


def _is_enough(served: ServedRecording, steps: int | None) -> bool:
    return steps is not None and served.steps >= steps


def _take(client: Any, url: str, served: ServedRecording) -> None:
    response = ask(client, "POST", url, option="recordable")
    if HEADER not in response.headers:
        raise RecordingError(f"{url} answers without the header {HEADER}; is a proxy in between?")
    with as_known(url):
        said = json.loads(response.headers[HEADER])
        cost_seconds, ended = float(said["seconds"]), said["ended"]
    if response.content:
        served.pieces.append(_whole(Recording.from_bytes(response.content, f"the answer of {url}"), url))
    served.recorder_seconds = cost_seconds
    if ended is not None:
        served.failure = f"the server has ended the recording: {ended}"


def _whole(piece: Recording, url: str) -> Recording:
    """The piece, if it has all that a server tells of its steps; a trace alone is a recording too."""
    parts = {"tokens": piece.routing.tokens, "prefill_tokens": piece.prefill_tokens, "requests": piece.requests}
    with as_known(url):
        for name, part in (parts | {"expert_bytes": piece.expert_bytes, "kv": piece.kv}).items():
            if part is None:
                raise ValueError(f"a piece without {name}")
    return piece


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Within, the first Ctrl-C or SIGTERM sets the event, so that no answer on its way is lost; the next interrupts."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in signals]

    def restore() -> None:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)

    def set_event(*_: object) -> None:
        event.set()
        restore()

    for number in signals:
        signal.signal(number, set_event)
    try:
        yield event
    finally:
        restore()
