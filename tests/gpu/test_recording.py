"""What the device decides is recorded as what the host decides is."""

from pathlib import Path

import numpy as np
import pytest

from wisp.conversations import Conversation, Script
from wisp.recording import Recording
from wisp.simulate import simulate

MODEL = Path(__file__).parents[2] / "demo" / "model"
SLOTS, TOP_K, TOKENS = 16, 4, 4
TALKS = (
    Conversation("python", ("Write Python code: Send a message to the server", "Continue.")),
    Conversation("prose", ("Tell a story about Captain Ahab. " * 12,)),
)
FLAGS = ("--max-num-batched-tokens", f"{TOKENS}", "--max-num-seqs", "2", "--max-model-len", "192", "--block-size", "32")
"""No step is wider than the slots."""


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """`record(decide, *flags)`: the report of an engine, and what was recorded of it."""
    recorded_run = pytest.importorskip("wisp.engines.vllm.recording.recorded_run")
    folder, made = tmp_path_factory.mktemp("recorded"), {}

    def record(decide, *flags):
        if (decide, *flags) not in made:
            path = folder / f"{len(made)}.npz"
            settings = {"expert_slots": SLOTS, "decide": decide}
            request = recorded_run.RunRequest(
                str(MODEL), settings, Script(TALKS, max_tokens=40), str(path), (*FLAGS, *flags)
            )
            report = recorded_run.record_run(request)
            made[decide, *flags] = report, Recording.load(path)
        return made[decide, *flags]

    return record


def test_both_record_the_same_sets(record):
    """Eager engines, which compute the same bits wherever paging is decided."""
    _, host = record("host", "--enforce-eager")
    _, device = record("device", "--enforce-eager")
    for name, array in host._fields().items():
        assert np.array_equal(array, device._fields()[name]), name


@pytest.mark.parametrize("flags", [("--enforce-eager",), ()])
def test_predicted_faults_equal_the_devices(record, flags):
    report, recording = record("device", *flags)
    replay = simulate(recording.routing, SLOTS)
    assert recording.routing.widths().max() <= SLOTS
    assert np.all(recording.routing.widths() <= TOP_K * recording.routing.tokens)  # what pads a graph needs nothing
    assert replay.total_references == report.counters["references"]
    assert replay.total_faults == report.counters["faults"] > 0
    assert replay.total_evictions == report.counters["evictions"]


def test_recording_costs_a_graph_under_two_percent(record):
    report, _ = record("device")
    assert 0 < report.recorder_seconds < 0.02 * report.seconds
