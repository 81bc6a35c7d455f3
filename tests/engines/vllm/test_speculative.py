"""Speculative decoding under paging: several tokens a request and step, and a draft model with experts of its own."""

from pathlib import Path
from typing import Any

import pytest
from workload import EAGER, make_request

pytestmark = pytest.mark.engine

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
MTP = {"method": "mtp", "num_speculative_tokens": 2}
SLOTS, DRAFT_SLOTS = 5, 4


@pytest.fixture(scope="module")
def speculative(engines, tmp_path_factory):
    import models

    model = models.add_tokenizer(models.make_mtp_checkpoint(tmp_path_factory.mktemp("checkpoints") / "mtp"))
    paged = {"expert_slots": SLOTS}
    by_ngrams = [  # one in each process: vLLM for CPUs starts no second engine once this has loaded numba
        engines({f"ngram, {name}": make_guessing_request(model, NGRAM, wisp)}, **EAGER)
        for name, wisp in (("stock", None), ("paged", paged))
    ]
    by_mtp = engines(
        {
            "mtp, stock": make_guessing_request(model, MTP),
            "mtp, paged": make_guessing_request(model, MTP, {**paged, "draft_expert_slots": DRAFT_SLOTS}),
            "mtp, broken": make_guessing_request(model, MTP, {**paged, "break_expert": True}),
        },
        **EAGER,
    )
    return {**by_ngrams[0], **by_ngrams[1], **by_mtp}


def make_guessing_request(model: Path, method: dict[str, Any], wisp: dict[str, Any] | None = None) -> dict[str, Any]:
    """With prompts that repeat themselves, which is what an n-gram finds; steps in order, so that guesses are seen."""
    request = make_request(model, wisp, speculative_config=method, async_scheduling=False)
    repeating = [[7, 8, 9, 10] * 6, [11, 12, 13] * 5, [20, 21] * 4 + [22]]
    request["phases"][0]["prompts"] += repeating
    request["phases"] = [
        {**phase, "sampling": {**phase["sampling"], "max_tokens": 16}} for phase in request["phases"][:2]
    ]
    return request


@pytest.mark.parametrize("method", ["ngram", "mtp"])
def test_tokens_and_guesses_are_the_unpaged_ones(speculative, method):
    stock, paged = speculative[f"{method}, stock"], speculative[f"{method}, paged"]
    for reply in (stock, paged):
        assert "error" not in reply, reply["error"]
    assert paged["counters"][0]["total"]["faults"] > 0
    assert not stock["counters"]
    assert stock["drafted"], "something was guessed"
    assert paged["drafted"] == stock["drafted"]
    assert paged["schedule"] == stock["schedule"]
    assert paged["phases"] == stock["phases"]


def test_a_verifying_step_has_several_tokens_of_a_request(speculative):
    decoding = [step for step in speculative["ngram, paged"]["schedule"] if set(step.values()) & {2, 3, 4}]
    assert decoding


def test_a_draft_has_slots_and_counters_of_its_own(speculative):
    reply = speculative["mtp, paged"]
    (draft,) = reply["draft_layers"]
    (target,), (counters,) = reply["counters"], reply["draft_counters"]
    assert draft["class"].endswith("PagedRoutedExperts")
    assert draft["buffers"]["w13_weight"][0] == DRAFT_SLOTS
    assert {layer["buffers"]["w13_weight"][0] for layer in reply["layers"]} == {SLOTS}
    assert draft["slots_true"]
    assert len(target["layers"]) == 2
    assert list(counters["layers"]) == ["model.layers.3.mlp.experts"]
    assert counters["facts"]["expert_slots"] == DRAFT_SLOTS
    assert 0 < counters["total"]["faults"] < counters["total"]["references"]


def test_wrong_experts_guess_and_answer_otherwise(speculative):
    assert speculative["mtp, broken"]["drafted"] != speculative["mtp, stock"]["drafted"]
    assert speculative["mtp, broken"]["phases"] != speculative["mtp, stock"]["phases"]


def test_without_a_draft_model_there_are_no_counters_of_one(speculative):
    assert speculative["ngram, paged"]["draft_counters"] == speculative["ngram, paged"]["draft_layers"] == []
