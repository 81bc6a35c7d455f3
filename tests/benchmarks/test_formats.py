"""The benchmark of formats: which rows are run, what is made of two engines' reports, and the processes they run in."""

import os
from concurrent.futures import Future

import pytest

from wisp.engines.vllm.verify.arm import Answer, ArmResult
from wisp.errors import VerifyError

COUNTERS = {"references": 4.0, "hits": 1.0, "faults": 3.0}


@pytest.fixture
def run(script):
    pytest.importorskip("safetensors")
    return script("formats/run.py")


def report(token=1, *, paged=False):
    """An engine that has answered one request with one token."""
    answers = [Answer([token], [{"1": -0.5}], 0)]
    return ArmResult(answers, [[(0, 1)]], COUNTERS if paged else None, 1.0)


def arm_of(*outcomes):
    """Engines that have ended with these, in their order; None is one whose turn has not come."""
    left = list(outcomes)

    def arm(**_):
        future, outcome = Future(), left.pop(0)
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        elif outcome is not None:
            future.set_result(outcome)
        return future

    return arm


def test_rows_are_asked_for_by_case_or_one_by_one_in_any_order(run):
    everything = run.asked_for(None)
    assert len(everything) == len(set(everything)) == 2 * len(run.CASES)
    found = run.asked_for("gptq_marlin,bf16_triton:eager")
    assert [(case.name, mode) for case, mode in found] == [
        ("gptq_marlin", "graphs"),
        ("gptq_marlin", "eager"),
        ("bf16_triton", "eager"),
    ]


@pytest.mark.parametrize("name", ["gptq", "gptq_marlin:fast", ""])
def test_an_unknown_row_is_refused_with_those_that_there_are(run, name):
    with pytest.raises(ValueError, match=r"unknown case .*known are bf16_triton, .*:graphs or :eager"):
        run.asked_for(f"bf16_triton,{name}")


def test_every_case_has_a_checkpoint_and_every_checkpoint_a_case(run):
    import quantisations

    assert {each.checkpoint for each in run.CASES} == set(quantisations.FORMATS)


@pytest.mark.parametrize(
    ("outcomes", "found"),
    [
        ((report(), report(paged=True)), {"verdict": "identical", "hits": 0.25, "faults": 3}),
        ((report(), report(2, paged=True), report()), {"verdict": "DIFFERENT", "stock_repeats_itself": True}),
        ((report(), report(2, paged=True), report(2)), {"verdict": "DIFFERENT", "stock_repeats_itself": False}),
        ((report(), VerifyError("it ended")), {"verdict": "failed", "error": "it ended"}),
    ],
)
def test_a_row_says_what_became_of_its_engines(run, outcomes, found):
    row = run.Row(run.CASES[0], "eager", arm_of(*outcomes)).result()
    assert found.items() <= row.items()
    assert (row["format"], row["backend"], row["mode"]) == ("bf16", "triton", "eager")


def test_a_row_whose_turn_has_not_come_is_left_out(run):
    row = run.Row(run.CASES[0], "graphs", arm_of(report(), None))
    row.leave_out()
    assert row.result() is None


def test_new_rows_take_the_place_of_old_ones_of_the_same_mode_alone(run):
    old = [{"format": "gptq", "backend": "marlin", "mode": mode, "verdict": "old"} for mode in ("graphs", "eager")]
    new = [old[1] | {"verdict": "new"}, old[0] | {"format": "bf16", "backend": "triton", "verdict": "new"}]
    record = run.merged({"runs": [{}], "rows": old}, {"machine": "x"}, new)
    assert [(row["format"], row["mode"], row["verdict"], row.get("run")) for row in record["rows"]] == [
        ("bf16", "graphs", "new", 1),
        ("gptq", "graphs", "old", None),
        ("gptq", "eager", "new", 1),
    ]


@pytest.mark.engine
def test_an_engine_runs_in_a_process_forked_from_one_that_has_imported_vllm(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # `prepare` adds to it
    forked = run.forked
    forked.prepare()
    log = tmp_path / "log"
    assert forked.run(tmp_path / "no request", log, {}, 500) == 1
    assert "no request" in log.read_text()
    assert forked.run(tmp_path / "no request", log, {}, 0) is None
