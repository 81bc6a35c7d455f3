"""The demo's comparison can fail, and says where."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def demo():
    path = Path(__file__).parents[2] / "demo" / "run.py"
    spec = importlib.util.spec_from_file_location("demo_run", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def replies(demo):
    positions = tuple(demo.Position(f"token_id:{n}", -0.1 * n, ((f"token_id:{n}", -0.1 * n),)) for n in (1, 2, 3))
    return [demo.Reply("prose, turn 1", (1, 2, 3), positions)]


def test_equal_replies_have_no_difference(demo, replies):
    assert demo.first_difference(replies, [replace(replies[0])]) is None


def test_one_bit_of_one_logprob_is_a_difference(demo, replies):
    (reply,) = replies
    place = reply.positions[1]
    other = replace(place, best=((place.token, place.logprob * (1 + 2**-52)),))
    changed = replace(reply, positions=(reply.positions[0], other, reply.positions[2]))
    assert "prose, turn 1, token 2" in demo.first_difference([changed], replies)


def test_a_shorter_answer_is_a_difference(demo, replies):
    (reply,) = replies
    shorter = replace(reply, token_ids=(1, 2), positions=reply.positions[:2])
    assert demo.first_difference([shorter], replies) == "prose, turn 1: 2 tokens paged, 3 unpaged"


def test_answers_without_logprobs_are_no_proof(demo, replies):
    bare = [replace(replies[0], positions=())]
    assert "nothing to compare" in demo.first_difference(bare, bare)
    assert "nothing to compare" in demo.first_difference([], [])
