"""vLLM's own Triton kernel, over an arena and decided on the device, gives the bits that it gives with all experts.

It runs in Triton's interpreter; slots that nothing was loaded into are NaN.
"""

import pytest

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def results(run_script):
    return run_script("run_triton_in_graph.py")


def test_every_number_of_slots_and_tokens_gives_the_same_bits(results):
    cases = results["cases"]
    assert {case["slots"] for case in cases if not case["in_files"]} == {1, 5, 16}  # top-k is 4 of 16
    assert {case["slots"] for case in cases if case["in_files"]} == {3}
    assert {case["tokens"] for case in cases} == {1, 2, 9, 24}  # 24 are streamed
    assert all(case["finite"] for case in cases)
    assert [(case["slots"], case["tokens"]) for case in cases if not case["identical"]] == []


def test_a_step_is_sorted_once_in_however_many_waves_it_is_computed(results):
    assert {case["sorts"] for case in results["cases"] if case["tokens"] == 24} == {1}


def test_faults_become_fewer_with_more_slots(results):
    own = [case for case in results["cases"] if not case["in_files"]]
    faults = [case["totals"][0]["faults"] for case in own if "totals" in case]
    assert faults == sorted(faults, reverse=True)
    assert faults[-1] == 16


def test_a_wrong_expert_shows(results):
    assert results["broken"] is False


def test_padding_that_the_router_has_given_experts_pages_none_in(results):
    routed = results["routed"]
    assert routed["identical"]
    assert routed["finite"], "padding is computed too, from what is there"
    assert routed["ids_as_before"]
    assert routed["paged"] == routed["needed"] < routed["named"]
