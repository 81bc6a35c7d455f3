"""vLLM's own Triton kernel, run from slots in waves, gives the bits that it gives with all experts.

It runs in Triton's interpreter; every byte that it does not write is NaN.
"""

import pytest

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def results(run_script):
    return run_script("run_triton.py")


@pytest.fixture(scope="module")
def cases(results):
    return results["cases"]


def test_every_number_of_slots_gives_the_same_bits(cases):
    assert {case["slots"] for case in cases} == {1, 3, 5, 16}  # top-k is 4 of 16
    assert all(case["finite"] for case in cases)
    assert [(case["slots"], case["tokens"]) for case in cases if not case["identical"]] == []


def test_the_interpreter_multiplies_as_a_gpu_would(cases):
    """Otherwise equal bits would show little: a term that is missing in both has to matter."""
    assert all(0 < case["off"] < 0.002 for case in cases), [case["off"] for case in cases]


def test_a_step_takes_no_more_waves_than_it_must(cases):
    for case in cases:
        assert case["waves"] == [-(-case["distinct"] // case["slots"])]
        assert case["calls"] == [{"rows": case["slots"]}] * case["waves"][0]
    assert {1, 3, 16} <= {case["waves"][0] for case in cases}


def test_the_tiles_are_those_of_all_experts(cases):
    for case in cases:
        (unpaged,) = case["unpaged_tiles"]
        assert case["paged_tiles"] == [unpaged] * case["waves"][0]
        if case["slots"] < 16:
            assert case["tiles_of_the_slots"] != unpaged, "the slots' own tiles are others, or this shows nothing"
    assert len({case["unpaged_tiles"][0]["BLOCK_SIZE_M"] for case in cases}) > 1


def test_no_tiles_are_left_behind(cases):
    assert {case["left_behind"] for case in cases} == {None}


def test_a_kernel_that_raises_leaves_nothing_behind(results):
    assert results["failure"] == {"raised": "the kernel failed", "tiles": None, "shadows": [], "identical": True}
