"""Requests to the routes that a server of ours has beside vLLM's own, and what their failures mean."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from wisp import __version__
from wisp.engines.vllm.protocol import PREFIX, REFUSED
from wisp.errors import ServerError


def key_headers(api_key: str | None) -> dict[str, str]:
    """What a server with a key wants to see."""
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def ask(client: Any, method: str, url: str, *, option: str) -> Any:
    """The answer of an `httpx.Client`, if it is one to go on with; `option` of `wisp serve` makes the route.

    Raises:
        ServerError: there is none; why, and what to do.
    """
    server = url.partition(PREFIX)[0]
    with reaching(server):
        response = client.request(method, url)
    if response.status_code == 404:
        raise ServerError(
            f"{server} has no {url.removeprefix(server)}; start it with `wisp serve MODEL --{option}`, or `vllm serve` "
            f'with "{option}": true among the settings of wisp'
        )
    if response.status_code in (401, 403):
        raise ServerError(f"{server} answers {response.status_code}; add its key with --api-key KEY")
    if response.status_code == REFUSED:
        raise ServerError(answer_of(response).get("error", "the server refuses without a reason"))
    if response.status_code != 200:
        raise ServerError(f"{url} answers {response.status_code}; look at the server's log")
    return response


@contextmanager
def reaching(server: str) -> Iterator[None]:
    """Within, `server` is asked with httpx; that there is no such place, or no answer, becomes a `ServerError`."""
    import httpx

    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise ServerError(
            f"{server!r} is no URL of a server ({error}); write it as in http://localhost:8000"
        ) from error
    except httpx.HTTPError as error:
        raise ServerError(
            f"no answer from {server} ({error or type(error).__name__}); check host and port, and that `wisp serve` "
            f"has finished starting there"
        ) from error


@contextmanager
def as_known(url: str) -> Iterator[None]:
    """Within, an answer of `url` is taken apart; what it lacks, or has in another form, becomes a `ServerError`."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ServerError(
            f"{url} answers in another form than wisp {__version__} knows ({type(error).__name__}: {error}); run the "
            f"same version of wisp here as in the server"
        ) from error


def answer_of(response: Any) -> dict[str, Any]:
    """The JSON object that was answered; `ServerError` if it was something else."""
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ServerError(f"{response.url} does not answer as a server of wisp does; name the root of one")
    return answer
