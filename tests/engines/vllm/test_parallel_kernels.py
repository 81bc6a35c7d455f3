"""Under expert parallelism each rank gives the bits that it gives with all of its experts in memory.

vLLM's own Triton kernel runs in Triton's interpreter with the expert map that vLLM makes for the rank. What is on
another rank leaves its rows of the workspaces unwritten, which are NaN at first.
"""

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def results(run_script):
    return run_script("run_triton_ranks.py")


@pytest.mark.parametrize("how", ["host", "device"])
def test_every_rank_gives_the_bits_of_itself_unpaged(results, how):
    cases = [case for case in results["cases"] if case["how"] == how]
    assert {case["rank"] for case in cases} == {0, 1, 2}
    assert {case["tokens"] for case in cases} == {1, 2, 9, 24}
    assert all(case["finite"] for case in cases)
    assert [case for case in cases if not case["identical"]] == []


@pytest.mark.parametrize("how", ["host", "device"])
def test_a_step_without_any_expert_of_the_rank_adds_nothing(results, how):
    cases = [case for case in results["cases"] if case["how"] == how and case["choices_here"] == 0]
    assert len(cases) >= 3
    assert all(case["identical"] for case in cases)


def test_experts_in_each_other_s_places_show(results):
    assert results["mistaken"] == [False] * 6


def test_the_ranks_add_up_to_the_whole(results):
    assert 0 < results["apart"] < 0.01
