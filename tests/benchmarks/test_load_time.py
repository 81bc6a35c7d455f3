"""The benchmark of loading keeps what it has measured when an engine fails or takes too long."""

import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

OPTIONS = Namespace(slots=4, prompt=16, steps=1)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("raise SystemExit('no room')", "no room"),
        ("import time; print('half', file=sys.stderr, flush=True); time.sleep(60)", "not done in 2 s; .*half"),
        ("print('report: {\"load\": 3}')", None),
    ],
)
def test_an_arm_without_a_report_says_why(
    script: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    told: str | None,
) -> None:
    load_time = script("load_time/run.py")
    (tmp_path / "arm.py").write_text(f"import sys\n{program}\n")
    monkeypatch.setattr(load_time, "HERE", tmp_path)
    monkeypatch.setattr(load_time, "TIMEOUT_SECONDS", 2)
    found = load_time.measured("stock", tmp_path, OPTIONS)
    if told is None:
        assert found == {"load": 3}
    else:
        assert set(found) == {"failed"}
        assert re.search(told, found["failed"])
