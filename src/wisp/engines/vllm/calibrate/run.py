"""Starts the calibrating process and waits for it, telling how far it is."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wisp.allocator.measurement import CopyPoint, DecodePoint, Measurements, PrefillPoint
from wisp.engines.vllm.calibrate.request import PROGRESS, CalibrationReport, CalibrationRequest
from wisp.engines.vllm.engine_process import environment
from wisp.errors import WispError


def calibration_run(request: CalibrationRequest, tell: Callable[[str], None]) -> CalibrationReport:
    """Measure; `tell` gets what is being measured. `WispError` says why it did not finish."""
    with tempfile.TemporaryDirectory(prefix="wisp-calibrate-") as folder:
        home = Path(folder)
        (home / "request.json").write_text(json.dumps(asdict(request)))
        command = [sys.executable, "-m", "wisp.engines.vllm.calibrate.engine"]
        command += [str(home / "request.json"), str(home / "report.json")]
        words: list[str] = []
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(), text=True, errors="replace"
        )
        with process:
            assert process.stdout is not None, "it was asked for"
            for line in process.stdout:
                if line.startswith(PROGRESS):
                    tell(line.removeprefix(PROGRESS).strip())
                else:
                    words = [*words[-14:], line.rstrip()]
        if not (home / "report.json").exists():
            tail = "\n".join(words)
            raise WispError(f"the engine ended with code {process.returncode} before it was measured:\n{tail}")
        answer = json.loads((home / "report.json").read_text())
    if "error" in answer:
        raise WispError(answer["error"])
    return _report(answer["report"])


def _report(raw: dict[str, Any]) -> CalibrationReport:
    measured = raw["measured"]
    kinds = {"decode": DecodePoint, "prefill": PrefillPoint, "copies": CopyPoint}
    lists = {name: tuple(kind(**point) for point in measured[name]) for name, kind in kinds.items()}
    return CalibrationReport(**{**raw, "measured": Measurements(**{**measured, **lists})})
