"""Groups of tokens: each row once, no union wider than the slots, the resident ones first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import WorkingSetTooLargeError
from wisp.pager.waves import TokenGroup, group_tokens

EXPERTS = 14


@st.composite
def steps(draw):
    """(choices [tokens, k], slots, resident experts)."""
    top_k = draw(st.integers(1, 5))
    row = st.lists(st.integers(0, EXPERTS - 1), min_size=top_k, max_size=top_k, unique=True)
    slots = draw(st.integers(top_k, EXPERTS))
    resident = draw(st.lists(st.integers(0, EXPERTS - 1), max_size=slots, unique=True))
    return draw(st.lists(row, max_size=24)), slots, resident


@given(steps())
def test_each_row_runs_once_and_every_union_fits(step):
    choices, slots, resident = step
    groups = group_tokens(choices, slots, resident)
    assert sorted(row for group in groups for row in group.rows) == list(range(len(choices)))
    for group in groups:
        assert group.rows
        assert list(group.rows) == sorted(group.rows)
        assert list(group.experts) == sorted({expert for row in group.rows for expert in choices[row]})
        assert len(group.experts) <= slots


@given(steps())
def test_rows_that_the_resident_experts_can_serve_run_first(step):
    choices, slots, resident = step
    groups = group_tokens(choices, slots, resident)
    served = {row for row, experts in enumerate(choices) if set(experts) <= set(resident)}
    if groups:
        assert served <= set(groups[0].rows)


@given(steps())
def test_a_step_that_fits_is_one_group(step):
    choices, slots, resident = step
    union = {expert for row in choices for expert in row}
    if choices and len(union) <= slots:
        assert group_tokens(choices, slots, resident) == [TokenGroup(tuple(range(len(choices))), tuple(sorted(union)))]


@given(steps())
def test_no_row_could_have_run_earlier(step):
    choices, slots, resident = step
    groups = group_tokens(choices, slots, resident)
    for index, group in enumerate(groups):
        for later in groups[index + 1 :]:
            for row in later.rows:
                assert len(set(group.experts) | set(choices[row])) > slots


def test_no_rows_are_no_groups():
    assert group_tokens([], 4) == []


def test_a_token_wider_than_the_slots_is_an_error():
    with pytest.raises(WorkingSetTooLargeError, match=r"one token needs 3 experts at once but there are 2 slots.*3 or"):
        group_tokens([[0], [1, 2, 3]], 2)


def test_an_expert_chosen_twice_by_a_token_counts_once():
    assert group_tokens([[5, 5, 1]], 2) == [TokenGroup((0,), (1, 5))]
