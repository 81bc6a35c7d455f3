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


@pytest.mark.parametrize(
    ("asked", "decided_on", "holds"),
    [
        (None, ["device"], True),
        (None, ["host"], True),
        ("device", ["device"], True),
        ("device", ["host"], False),
        (None, ["device", "host"], False),
        (None, ["None"], False),  # what a worker says that pages nothing
        (None, [], False),
    ],
)
def test_a_soak_in_which_nothing_was_paged_fails(
    script: Callable[[str], ModuleType], asked: str | None, decided_on: list[str], holds: bool
) -> None:
    figures = script("soak/figures.py")
    result = {
        "requests": dict.fromkeys(figures.KINDS, 1),
        "preemptions": 1,
        "errors": [],
        "not_sensible": [],
        "left_when_idle": {},
        "memory": {"whole_growth_mib_per_minute": 0.0},
        "device_memory": {"held_growth_mib_per_minute": 0.0},
        "decided_on": decided_on,
        "decided_on_asked": asked,
        "integrity": {"wrong": 0, "residents_at_the_end": 1},
        "sample": {"identical": 1, "answers": 1},
    }
    checks = figures.checks(result)
    assert checks.pop(f"paging was decided on the {asked or 'device or the host'}") is holds
    assert all(checks.values())
