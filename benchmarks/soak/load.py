"""A server under load, watched meanwhile: its memory, its slots, and how far the soak has come."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import psutil
from clients import Clients
from rich.status import Status
from server import ANSWER_SECONDS, Server, console
from tally import Tally

MEMORY_SECONDS, INTEGRITY_SECONDS = 5, 30


async def soak(server: Server, text: list[int], minutes: float, seed: int, *, paged: bool) -> Tally:
    """Load the server, look at its memory and its slots meanwhile, and show how it goes."""
    tally, seconds = Tally(), minutes * 60
    start = time.monotonic()
    with console.status("") as status:
        watchers = [
            asyncio.create_task(every(MEMORY_SECONDS, watch_memory, server, tally, start)),
            asyncio.create_task(every(1 if console.is_terminal else 30, show, tally, status, start, seconds)),
        ]
        if paged:
            watchers.append(asyncio.create_task(every(INTEGRITY_SECONDS, watch_integrity, server, tally)))
            watchers.append(asyncio.create_task(every(MEMORY_SECONDS, watch_device_memory, server, tally, start)))
        clients = asyncio.create_task(Clients(server, text, tally, seed).run(seconds))
        ended, _ = await asyncio.wait([clients, *watchers], return_when=asyncio.FIRST_COMPLETED)
        for task in (clients, *watchers):
            task.cancel()
        await asyncio.gather(clients, *watchers, return_exceptions=True)
    if clients not in ended:  # what is not watched need not go on
        (watcher, *_) = ended
        raise RuntimeError(f"not watched from {time.monotonic() - start:.0f} s on") from watcher.exception()
    clients.result()
    if server.process.poll() is not None:
        sys.exit("the server ended under load")
    return tally


async def every(seconds: float, action: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """Repeat an action until cancelled."""
    while True:
        await asyncio.gather(action(*arguments), asyncio.sleep(seconds))


async def watch_memory(server: Server, tally: Tally, start: float) -> None:
    """Resident memory of the server's process, which is the front end, and of those below it."""
    front_end = psutil.Process(server.process.pid)
    below = front_end.children(recursive=True)
    try:
        sizes = [process.memory_info().rss / 2**20 for process in (front_end, *below)]
    except psutil.NoSuchProcess:  # a helper of the server's that has just ended
        return
    tally.memory.append((round(time.monotonic() - start, 1), round(sizes[0], 2), round(sum(sizes[1:]), 2)))


async def watch_device_memory(server: Server, tally: Tally, start: float) -> None:
    """Of all workers together, between two of their steps."""
    workers = await ask_workers(server, "wisp_device_memory")
    held = [sum(worker[key] for worker in workers) / 2**20 for key in ("allocated_bytes", "reserved_bytes")]
    tally.device_memory.append((round(time.monotonic() - start, 1), round(held[0], 2), round(held[1], 2)))
    tally.decided_on |= {worker["decided_on"] for worker in workers}


async def watch_integrity(server: Server, tally: Tally) -> None:
    """Every worker's check, between two of its steps."""
    tally.integrity += await ask_workers(server, "wisp_check_integrity")


async def ask_workers(server: Server, method: str) -> list[dict[str, Any]]:
    """What a method of the worker extension returns, worker by worker."""
    async with httpx.AsyncClient(timeout=ANSWER_SECONDS) as client:
        response = await client.post(f"{server.url}/collective_rpc", json={"method": method})
    response.raise_for_status()
    results: list[dict[str, Any]] = response.json()["results"]
    return results


async def show(tally: Tally, status: Status, start: float, seconds: float) -> None:
    """A line that changes; without a terminal, one a call."""
    now = time.monotonic() - start
    line = (
        f"{now:4.0f} of {seconds:.0f} s: {tally.outcomes.total()} requests, {tally.answer_tokens} tokens, "
        f"{sum(tally.memory[-1][1:]) if tally.memory else 0:.0f} MiB, {len(tally.errors)} errors, "
        f"{sum(check['wrong'] for check in tally.integrity)} wrong slots"
    )
    status.update(line)
    if not console.is_terminal:
        console.print(f"   {line}")
