"""The soak stops when it no longer sees what it is to judge."""

import asyncio
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest


@pytest.fixture
def soak(script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = script("soak/load.py")

    class Clients:
        def __init__(self, *_: object) -> None: ...

        async def run(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

    async def seen(*_: object) -> None: ...

    monkeypatch.setattr(module, "Clients", Clients)
    for watcher in ("watch_memory", "watch_device_memory", "watch_integrity"):
        monkeypatch.setattr(module, watcher, seen)
    return module


SERVER = SimpleNamespace(process=SimpleNamespace(poll=lambda: None))


def test_a_watched_soak_lasts_as_long_as_it_should(soak: ModuleType) -> None:
    assert asyncio.run(soak.soak(SERVER, [], 0.2 / 60, 0, paged=True)).errors == []


@pytest.mark.parametrize("watcher", ["watch_memory", "watch_device_memory", "watch_integrity"])
def test_a_watcher_that_fails_ends_the_soak(soak: ModuleType, monkeypatch: pytest.MonkeyPatch, watcher: str) -> None:
    async def blind(*_: object) -> None:
        raise RuntimeError("this engine pages no experts")

    monkeypatch.setattr(soak, watcher, blind)
    with pytest.raises(RuntimeError, match="not watched from 0 s on") as ended:
        asyncio.run(asyncio.wait_for(soak.soak(SERVER, [], 10, 0, paged=True), 20))
    assert "pages no experts" in str(ended.value.__cause__)
