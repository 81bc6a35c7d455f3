"""Paged and unpaged engines give the same tokens and top-20 logprobs, bit for bit, under the same schedule."""

import os
from collections import Counter
from typing import Any

import pytest
import torch
from workload import BLOCK, EAGER, POLICIES, SLOTS, assert_identical, make_phases, make_request

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("slots", SLOTS)
def test_every_number_of_slots(qwen, slots):
    assert_identical(qwen[str(slots)], qwen["stock"])


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy(qwen, policy):
    assert_identical(qwen[policy], qwen["stock"])


def test_more_sequences_at_once(qwen):
    assert_identical(qwen["many sequences"], qwen["stock again"])


def test_requests_that_are_preempted(qwen):
    assert_identical(qwen["crowded"], qwen["stock, crowded"])
    computed = Counter()
    for step in qwen["crowded"]["schedule"]:
        computed.update(step)
    assert max(computed.values()) > BLOCK - 1 + 12, "some request was computed twice"


def test_a_wrong_expert_shows(qwen):
    broken, stock = qwen["broken"], qwen["stock"]
    assert broken["schedule"] == stock["schedule"], "what differs is not the schedule"
    for wrong, right in zip(broken["phases"], stock["phases"], strict=True):
        for output, expected in zip(wrong, right, strict=True):
            assert output["logprobs"] != expected["logprobs"]


def test_the_workload_is_what_it_is_meant_to_be(qwen):
    """Chunked prefill, batches, prefix hits and steps wider than the slots all happened."""
    stock, narrow = qwen["stock"], qwen["4"]
    assert [len(output["logprobs"][0]) for output in stock["phases"][0]] == [20] * 6
    longest = "2"
    assert sum(step.get(longest, 0) > 1 for step in stock["schedule"]) > 1, "a prompt in several chunks"
    assert max(map(len, stock["schedule"])) >= 6, "a batch"
    assert any(1 in step.values() and max(step.values()) > 1 for step in stock["schedule"]), "prefill beside decode"
    cached = [[output["cached"] for output in phase] for phase in stock["phases"]]
    assert cached[1][1] >= 2 * BLOCK, "a prefix hit within a batch"
    assert min(cached[2][:2]) >= 2 * BLOCK, "a prefix hit in a later one"
    facts = narrow["counters"][0]["total"]
    planned = [len(plans) for plans in narrow["plans"].values()]
    assert min(planned) > 2 * len(stock["schedule"]), "steps wider than the slots"
    assert facts["faults"] > facts["references"] / 4
    assert len({tuple(output["tokens"]) for phase in stock["phases"] for output in phase}) == 11


WHOLE_PROMPTS = {"enable_prefix_caching": False, "max_num_batched_tokens": 512}
"""vLLM's scan for CPUs gives no state within a prompt, for which caching prefixes asks; nor does a seed there survive
a prompt in pieces."""

MODELS: dict[str, tuple[tuple[Any, ...], dict[str, Any], int, dict[str, Any]]] = {
    "fp16": (("qwen3_moe", torch.float16), {}, 5, {"dtype": "float16"}),
    "shared expert": (("qwen2_moe",), {}, 5, {}),
    "olmoe": (("olmoe",), {}, 4, {}),
    "mixtral": (("mixtral",), {}, 3, {}),
    "grouped, with a bias": (("glm4_moe",), {}, 5, {}),
    "padded by the engine": (("qwen3_moe",), {"moe_intermediate_size": 48}, 6, {}),
    "dense layers between": (("qwen3_moe",), {"decoder_sparse_step": 2, "num_hidden_layers": 4}, 5, {}),
    "one expert a token": (("qwen3_moe",), {"num_experts_per_tok": 1}, 1, {}),
    "all experts a token": (("qwen3_moe",), {"num_experts": 4}, 4, {}),
    "untied top-k": (("qwen3_moe",), {"norm_topk_prob": False, "num_experts": 24, "num_experts_per_tok": 6}, 7, {}),
    "biases, a class of its own": (("gpt_oss",), {}, 3, {}),
    "the Transformers backend": (("qwen3_moe",), {}, 5, {"model_impl": "transformers"}),
    "latent attention": (("deepseek_v2",), {}, 5, {}),
    "state-space layers between": (("granitemoehybrid",), {}, 3, WHOLE_PROMPTS),
    "random weights": (("qwen3_moe",), {}, 5, {"load_format": "dummy"}),
}
"""Name -> what `checkpoint` makes, its overrides, the slots, arguments of the engine."""


@pytest.fixture(scope="module")
def models(engines, checkpoint):
    requests = {}
    for name, (kind, overrides, slots, args) in MODELS.items():
        model = checkpoint(*kind, **overrides)
        requests[f"{name}, stock"] = make_request(model, **args)
        requests[f"{name}, paged"] = make_request(model, {"expert_slots": slots}, **args)
    return engines(requests, **EAGER)


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model(models, name):
    assert_identical(models[f"{name}, paged"], models[f"{name}, stock"])


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("biases, a class of its own", "vllm.model_executor.models.gpt_oss.GptOssRoutedExperts"),
        ("the Transformers backend", "vllm.model_executor.models.transformers.moe.TransformersRoutedExperts"),
    ],
)
def test_a_models_own_class_is_paged_where_wisp_is_configured_alone(models, name, own):
    stock, paged = (models[f"{name}, {which}"]["layers"] for which in ("stock", "paged"))
    assert {layer["class"] for layer in stock} == {own}
    assert all(layer["own"] == layer["kernel_own"] == [] for layer in stock)
    assert {layer["class"].rpartition(".")[2] for layer in paged} == {f"Paged{own.rpartition('.')[2]}"}
    assert all(layer["slots_true"] for layer in paged)


def test_models_differ(models):
    assert len({str(models[f"{name}, stock"]["phases"]) for name in MODELS}) == len(MODELS)


@pytest.mark.slow
def test_compiled_and_on_several_threads(engines, checkpoint):
    model = checkpoint("qwen3_moe", num_hidden_layers=1)
    args = {"enforce_eager": False}
    replies = engines({"stock": make_request(model, **args), "paged": make_request(model, {"expert_slots": 5}, **args)})
    paged = replies["paged"]
    assert_identical(paged, replies["stock"])
    planned = [sum(plan["faults"] for plan in plans) for plans in paged["plans"].values()]
    counted = [fields["faults"] for fields in paged["counters"][0]["layers"].values()]
    assert planned == counted, "the warm-up is not counted"


def test_tensor_parallel(engines, checkpoint):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("two ranks need two cores")
    model = checkpoint("qwen3_moe")
    args = {"tensor_parallel_size": 2}
    replies = engines(
        {"stock": make_request(model, **args), "paged": make_request(model, {"expert_slots": 5}, **args)},
        **{**EAGER, "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores[:2]))},
    )
    assert_identical(replies["paged"], replies["stock"])
    first, second = replies["paged"]["counters"]
    assert first["facts"] == second["facts"]
    for rank in (first, second):
        rank["total"].pop("copy_seconds")
    assert first["total"] == second["total"], "both ranks decide alike"
    assert len(make_phases()) == len(replies["paged"]["phases"])
