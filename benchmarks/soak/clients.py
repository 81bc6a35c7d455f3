"""Clients that come, go and vanish: they wait for an answer, stream it, close it, give up, or break the connection."""

import asyncio
import json
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from math import isfinite
from typing import Any

import httpx
from openai import AsyncOpenAI
from server import ANSWER_SECONDS, CLIENTS, Server
from tally import Tally

MAX_TOKENS = 160
PROMPT_TOKENS = ((3, 40), (40, 250), (256, 800))
"""Ranges: a few words, one chunk of prefill, two to four chunks."""
KINDS = {"whole": 35, "streamed": 35, "closed": 12, "given up": 8, "disconnected": 10}
"""Weights of what a client does: wait for the answer; stream it; close the stream after some tokens; give up waiting;
break its TCP connection in the middle of an answer."""


class Clients:
    """Eight clients of one server, each with one request in flight."""

    def __init__(self, server: Server, text: list[int], tally: Tally, seed: int) -> None:
        self._server, self._text, self._tally = server, text, tally
        self._draw = random.Random(seed)
        self._api = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0, timeout=ANSWER_SECONDS)
        self._kinds: dict[str, Callable[[dict[str, Any]], Awaitable[None]]] = {
            "whole": self._whole,
            "streamed": self._streamed,
            "closed": self._closed,
            "given up": self._given_up,
            "disconnected": self._disconnected,
        }

    async def run(self, seconds: float) -> None:
        """Ask until the time is over, then let the last answers finish."""
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._client(end) for _ in range(CLIENTS)))
        await self._api.close()

    async def _client(self, end: float) -> None:
        while time.monotonic() < end and self._server.process.poll() is None:
            (kind,) = self._draw.choices(list(KINDS), weights=list(KINDS.values()))
            try:
                await self._kinds[kind](self._request())
            except Exception as error:
                self._tally.errors.append(f"{kind}: {type(error).__name__}: {error}")
                await asyncio.sleep(1)

    def _request(self) -> dict[str, Any]:
        """Half of the prompts begin at a paragraph of four, so that prefixes are shared; half anywhere."""
        length = self._draw.randint(*self._draw.choice(PROMPT_TOKENS))
        last = len(self._text) - length
        start = self._draw.choice([self._draw.randrange(4) * 100, self._draw.randrange(last)])
        self._tally.prompt_tokens += length
        return {
            "model": "soak",
            "prompt": self._text[start : start + length],
            "max_tokens": self._draw.randint(1, MAX_TOKENS),
            "temperature": self._draw.choice([0.0, 0.8]),
            "logprobs": 1,
        }

    async def _whole(self, request: dict[str, Any]) -> None:
        answer = await self._api.completions.create(**request)
        (choice,) = answer.choices
        self._judge("whole", request, choice.text, choice.finish_reason, choice.logprobs)

    async def _streamed(self, request: dict[str, Any]) -> None:
        text, reason = "", None
        logprobs: list[float | None] = []
        async for chunk in await self._api.completions.create(**request, stream=True):
            for choice in chunk.choices:
                text += choice.text
                reason = choice.finish_reason or reason
                logprobs += choice.logprobs.token_logprobs if choice.logprobs else []
        self._judge("streamed", request, text, reason, logprobs)

    async def _closed(self, request: dict[str, Any]) -> None:
        left = self._draw.randint(0, 12)
        async with await self._api.completions.create(**request, stream=True) as stream:
            async for _ in stream:
                left -= 1
                if left < 0:
                    break
        self._tally.outcomes["closed"] += 1

    async def _given_up(self, request: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._draw.uniform(0.02, 3)):
                await self._api.completions.create(**request)
        except TimeoutError:
            self._tally.outcomes["given up"] += 1
        else:
            self._tally.outcomes["answered before it was given up"] += 1

    async def _disconnected(self, request: dict[str, Any]) -> None:
        """Reset a connection while the answer comes."""
        url = httpx.URL(self._server.url)
        body = json.dumps({**request, "stream": True, "max_tokens": MAX_TOKENS, "ignore_eos": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            heard = b""
            while heard.count(b"data:") < 3:
                piece = await reader.read(256)
                if not piece:
                    raise ConnectionError(f"the answer ended too early to break off: {heard[-200:]!r}")
                heard += piece
        reset = struct.pack("ii", 1, 0)  # in place of an orderly end
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()
        self._tally.outcomes["disconnected"] += 1

    def _judge(self, kind: str, request: dict[str, Any], text: str, reason: str | None, logprobs: Any) -> None:
        """A sensible answer ends for a reason, is as long as that says, and has text and finite probabilities."""
        numbers = [number for number in getattr(logprobs, "token_logprobs", logprobs) if number is not None]
        self._tally.outcomes[kind] += 1
        self._tally.answer_tokens += len(numbers)
        most = request["max_tokens"]
        long_enough = len(numbers) == most if reason == "length" else reason == "stop" and 1 <= len(numbers) <= most
        worded = bool(text) or len(numbers) < 8  # fewer may be one unfinished character
        if not (long_enough and worded and all(isfinite(number) and number <= 0 for number in numbers)):
            self._tally.not_sensible.append(f"{kind}: {reason}, {len(numbers)} of {most} tokens, {text[:80]!r}")
