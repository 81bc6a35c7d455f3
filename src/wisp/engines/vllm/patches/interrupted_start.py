"""`vllm.v1.engine.utils.zmq_socket_ctx`: let Ctrl-C and SIGTERM end a start-up.

Why: the context manager swallows KeyboardInterrupt. The front end then goes on to wait, for minutes, for engines that
nobody will start.
What: calls the original and raises the interrupt again once the socket is closed. Installed by `wisp serve` only.
Versions: 0.32. Ends when: vLLM lets the interrupt through.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def install() -> None:
    """Replace the name where the front end uses it."""
    from vllm.v1.engine import utils

    original = utils.zmq_socket_ctx

    @contextmanager
    def zmq_socket_ctx(*args: Any, **kwargs: Any) -> Iterator[Any]:
        interrupt: KeyboardInterrupt | None = None
        with original(*args, **kwargs) as socket:
            try:
                yield socket
            except KeyboardInterrupt as caught:
                interrupt = caught
                raise
        if interrupt is not None:
            raise interrupt

    utils.zmq_socket_ctx = zmq_socket_ctx
