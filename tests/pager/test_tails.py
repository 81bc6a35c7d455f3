"""A row's tail arrives by the time that its reader has waited, and not before."""

import pytest
import torch

from wisp.pager.store import RowLayout


@pytest.fixture(scope="module")
def reports(run_script):
    return run_script("run_tails.py")


@pytest.fixture(params=["rows", "pieces"])
def report(request, reports):
    """What was seen of experts that are copied as rows, or in pieces."""
    return reports[request.param]


def test_decisions_do_not_depend_on_tails(report):
    assert report["tables"] == 0
    assert report["loads"] > 50


def test_heads_are_there_at_once_and_whole_rows_after_the_wait(report):
    assert report["heads"] == report["loads"]
    assert report["whole_early"] == 0
    assert report["whole"] == report["loads"]
    assert report["wrong"] == 0


def test_what_finds_no_slot_is_whole_too(report):
    assert report["overflow"] == report["overflow_whole"] > 10


@pytest.mark.parametrize(
    ("names", "first_of_tail"),
    [(["w13", "w2"], "w2"), (["w13", "w2", "w2_scale"], "w2"), (["w2", "w13"], None), (["w13", "w2", "w13_s"], None)],
)
def test_a_tail_is_what_only_the_second_product_needs(names, first_of_tail):
    layout = RowLayout(dict.fromkeys(names, ((3, 5), torch.float32)))
    starts = {part.name: part.start for part in layout.parts}
    expected = layout.row_bytes if first_of_tail is None else starts[first_of_tail]
    assert layout.tail_start(lambda name: name.startswith("w2")) == expected
