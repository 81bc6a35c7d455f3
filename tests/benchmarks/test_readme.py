"""What README.md says of the benchmarks is what their results.json say."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")


def results_of(benchmark):
    return json.loads((ROOT / "benchmarks" / benchmark / "results.json").read_text())


def row_of(benchmark):
    """The last row of a table that points to this benchmark."""
    return [line for line in README.splitlines() if line.startswith("|") and f"(benchmarks/{benchmark})" in line][-1]


@pytest.mark.parametrize("budget", [23, 32, 44])
def test_how_fast_is_what_one_run_measured(budget):
    rows = [row for row in results_of("iso_vram")["rows"] if row["budget_gib"] == budget]
    (line,) = re.findall(rf"^\| {budget} GiB \| (.*) \|$", README, re.M)
    slots, *rates, prompt = line.split(" | ")
    runs = {row["call"] for row in rows if row["arm"] == "vllm-uva"}
    told = {(batch, arm): n for batch, rate in zip((1, 4, 8), rates, strict=True) for arm, n in halves(rate)}

    def said(run):
        measured = {(row["batch"], row["arm"]): row for row in rows if row["call"] == run}
        return measured.keys() >= told.keys() and all(
            round(measured[key]["decode_tok_s"]) == number
            and measured[key]["expert_slots"] == int(slots.split()[0])
            and abs(measured[key]["ttft_s"]["4096"] - dict(halves(prompt))[key[1]]) <= 0.05
            for key, number in told.items()
        )

    assert any(map(said, runs))


def halves(cell):
    """`68 / 19`: wisp's and vLLM's own."""
    return zip(("wisp", "vllm-uva"), (float(half) for half in cell.removesuffix(" s").split(" / ")), strict=True)


def test_every_pair_of_format_and_kernel_is_counted():
    rows = results_of("formats")["rows"]
    assert all(row["verdict"] == "identical" for row in rows)
    assert f"{len({(row['format'], row['backend']) for row in rows})} pairs" in row_of("formats")


def test_the_kinds_of_models_that_ran_on_a_gpu_are_counted():
    identical = [row for row in results_of("models")["cuda"].values() if row["identical"]]
    assert f"in CUDA graphs, {NUMBERS[len(identical)]} of them" in row_of("models")


def test_loading_takes_what_the_runs_measured():
    runs = results_of("load_time")["runs"]
    row = row_of("load_time")
    for arm, words in {"memory": "into memory", "checkpoint": "from files", "stock": "stock"}.items():
        seconds = {round(run["arms"][arm]["seconds"]["load"]) for run in runs if arm in run["arms"]}
        least, most = re.findall(rf"(\d+)(?: to (\d+))? s? ?{words}", row)[0]
        assert (int(least), int(most or least)) == (min(seconds), max(seconds))


def test_recording_and_planning_cost_what_was_measured():
    hooks = results_of("record_overhead")["hooks"]["wall"]
    low, high = hooks["interval_percent"]
    assert f"{hooks['median_percent']:.1f} % (95 %: {low:.1f} to {high:.1f})" in row_of("record_overhead")
    seconds = [model["median_seconds"] for model in results_of("plan_speed")["models"].values()]
    assert f"{min(seconds):.1f} to {max(seconds):.1f} s for {NUMBERS[len(seconds)]}" in row_of("plan_speed")
    check = results_of("plan_check")
    assert f"{check['rows_within_bound']} of {len(check['rows'])} within 15 %" in row_of("plan_check")
