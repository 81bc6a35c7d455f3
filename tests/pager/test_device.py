"""What the device decides is what `ResidentSet` decides, eviction by eviction, and the bytes are where it says."""

import pytest


@pytest.fixture(scope="module")
def reports(run_script):
    return run_script("run_device.py")


@pytest.fixture(params=["interleaved", "planar", "in files"])
def report(request, reports):
    """What was seen of one kind of arena, or of store."""
    return reports[request.param]


def test_only_a_planar_arena_keeps_each_tensor_in_one_piece(reports):
    assert {replay["contiguous"] for replay in reports["planar"]["replays"]} == {True}
    for other in ("interleaved", "in files"):
        assert {replay["contiguous"] for replay in reports[other]["replays"]} == {False}


def test_page_tables_and_bytes_equal_the_host_s_plan(report):
    assert [replay["wrong"] for replay in report["replays"]] == [[]] * len(report["replays"])


def test_steps_wider_than_the_slots_occur(report):
    assert [replay["direct"] > 0 for replay in report["replays"]] == [False, False, True, False, True, True, True]


def test_what_finds_no_slot_is_copied_as_far_as_there_are_rows(reports):
    found = {
        name: [sum(replay[key] for replay in reports[name]["replays"]) for key in ("over", "direct")]
        for name in ("interleaved", "planar", "in files")
    }
    assert 0 < found["interleaved"][0] < found["interleaved"][1], "the rest is read where it lies"
    for name in ("planar", "in files"):
        assert found[name][0] == found[name][1]


def test_faults_and_evictions_are_those_of_the_host(report, request):
    steps = 12 if request.node.callspec.params["report"] == "interleaved" else 6
    for replay in report["replays"]:
        assert replay["faults"][0] == replay["faults"][1]
        assert replay["evictions"][0] == replay["evictions"][1]
        assert replay["steps"] == replay["waves"] == [steps, steps]
    assert any(sum(replay["evictions"][0]) > 0 for replay in report["replays"])


def test_recorded_routing_is_paged_as_the_host_would(reports):
    recorded = reports["recorded"]
    assert recorded["wrong"] == []
    assert recorded["faults"][0] == recorded["faults"][1]
    assert recorded["evictions"][0] == recorded["evictions"][1]
    references = 4 * recorded["steps"][0]
    assert all(0.2 * references < faults < 0.8 * references for faults in recorded["faults"][0]), "some repeat"


@pytest.mark.parametrize("case", ["cold", "warm", "all"])
def test_a_stream_shows_every_expert_once_with_its_bytes(report, case):
    assert report[case]["seen"] == [list(range(16))] * 2
    assert report[case]["wrong"] == 0


def test_a_stream_copies_the_next_layer_s_experts_while_a_layer_computes(report):
    for case in ("cold", "warm"):
        first, last = report[case]["ahead"]
        assert first >= 1
        assert last == 0, "there is nothing behind the last layer"


def test_a_stream_leaves_the_residents_in_their_slots(report):
    assert report["warm"]["before"] == report["warm"]["after"]
    assert report["warm"]["before"][0][:6] == [0, 1, 2, 3, 4, -1]


def test_a_stream_fills_the_free_slots(report):
    assert report["cold"]["before"] == [[-1] * 16] * 2
    assert report["cold"]["after"] == [[0, 1, 2, 3, 4, *[-1] * 11]] * 2
    assert report["all"]["after"] == [list(range(16))] * 2


def test_a_stream_counts_what_it_moves(report, request):
    warm, cold = report["warm"]["totals"][0], report["cold"]["totals"][0]
    assert (warm["references"], warm["faults"], warm["steps"]) == (5 + 16, 5 + 11, 2)
    assert (cold["references"], cold["faults"], cold["steps"]) == (16, 16, 1)
    if request.node.callspec.params["report"] == "planar":
        assert (warm["waves"], cold["waves"]) == (1 + 1, 1)  # in one piece
    else:
        assert (warm["waves"], cold["waves"]) == (1 + 1 + 4, 1 + 2 + 4)  # in groups of three experts at most
    assert warm["bytes_moved"] == (5 + 11) * cold["bytes_moved"] / 16


def test_the_ring_holds_what_every_step_needed(report):
    assert all(replay["routing"] for replay in report["replays"])
    assert report["cold"]["routing"] == [2 * 0xFF] * 2  # one streamed step of every expert, in each of two layers


def test_curves_from_the_ring_are_those_of_the_recorded_trace(report):
    assert all(replay["curves"] for replay in report["replays"])


def test_a_resize_between_steps_evicts_moves_and_keeps_as_the_host_does(report):
    resized = report["resized"]
    assert resized["wrong"] == []
    assert resized["direct"] > 0
    assert resized["faults"][0] == resized["faults"][1]
    assert resized["evictions"][0] == resized["evictions"][1]


def test_a_layer_that_a_stream_has_waited_for_in_vain_is_named(reports):
    in_order, first_left_out, second_left_out = reports["left out"]
    assert in_order == []
    assert [text.partition(":")[0] for text in first_left_out] == [
        "layer 1 streams its experts where layer 0 was to stream",
    ]
    assert [text.partition(":")[0] for text in second_left_out] == [
        "layer 0 streams its experts where layer 1 was to stream",
    ], "and the step after that begins anew"
