"""Experts with biases, which gpt-oss has: vLLM's Triton kernel reads them from the slots, too."""

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def cases(run_script):
    return run_script("run_triton_bias.py")


def test_biases_are_those_of_the_experts_in_the_slots(cases):
    assert len(cases) == 10
    assert [(case["slots"], case["tokens"]) for case in cases if not (case["identical"] and case["finite"])] == []


def test_biases_matter(cases):
    assert all(case["biases_matter"] for case in cases)
