"""Pages with several programs at a time, in Triton's interpreter, beside `ResidentSet`; says what differs.

python run_interleaved.py RESULTS.json
"""

import json
import random
import sys
import tempfile
from pathlib import Path

import pytest
import run_device as shared  # prepares Triton
import torch
from interleaved import interleaved
from triton.runtime.interpreter import InterpreterBuilder

from wisp.pager import device_kernels
from wisp.pager.device import DevicePager

PROGRAMS, STEPS = 3, 4
SHAPE = (16, 5, 4, 2)
"""As in `run_device`: a step needs more experts than there are slots, or not."""
CHANGES = (0.0, 0.2)
"""One program after the other, in any order, or one a few accesses ahead of another."""


def main(results: str) -> None:
    """Rows and pieces, and a kernel whose state the first program to have read it writes anew."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(DevicePager, "_programs", lambda _: PROGRAMS)
        pieces = {"tensors": shared.IN_FILES, "folder": folder}
        report = {"rows": [paged(change) for change in CHANGES], "pieces": [paged(CHANGES[-1], **pieces)]}
        patch.setattr(InterpreterBuilder, "create_atomic_rmw", arrives_last(InterpreterBuilder.create_atomic_rmw))
        report["too early"] = [paged(CHANGES[0])]
    Path(results).write_text(json.dumps(report))


def paged(change: float, **how) -> dict[str, object]:
    """What came of some steps, of the same routing whatever is asked."""
    random.seed(0)
    torch.manual_seed(0)
    with interleaved(device_kernels.decide_and_gather, change=change):
        report = shared.replay(*SHAPE, planar=False, steps=STEPS, **how)
    return {key: report[key] for key in ("wrong", "routing", "faults", "evictions", "steps", "direct")}


def arrives_last(atomic_add):
    """Tells the first program that the others have arrived before it."""

    def wrong(*arguments):
        before = atomic_add(*arguments)
        before.data = PROGRAMS - 1 - before.data
        return before

    return wrong


if __name__ == "__main__":
    main(*sys.argv[1:])
