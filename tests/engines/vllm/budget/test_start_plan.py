"""An engine that is given a budget has the slots and the KV that the allocator says, and answers as ever."""

import os
from dataclasses import replace

import pytest
from workload import BLOCK, EAGER, make_request

from wisp.allocator import STATED, Question, Workload, make_plan, read_model_shape
from wisp.allocator.engine_facts import EngineFacts
from wisp.allocator.explanation import why
from wisp.allocator.kv_layout import KvLayout

pytestmark = pytest.mark.engine
LAYERS, EXPERTS, EXPERT_BYTES = 3, 16, 2 * (64 * 64 + 64 * 32)
BLOCK_BYTES = LAYERS * 2 * 2 * 64 * 2 * BLOCK
BUDGET, CONTEXT, SEQUENCES, CHUNK = 2 << 20, 256, 4, 64
ARGS = {"max_model_len": CONTEXT, "max_num_seqs": SEQUENCES, "num_gpu_blocks_override": None}
CPU = {**EAGER, "VLLM_CPU_KVCACHE_SPACE": ""}


def question(model, budget=BUDGET):
    facts = EngineFacts(LAYERS * EXPERT_BYTES, KvLayout(BLOCK, BLOCK_BYTES), {})
    workload = Workload.typical(CONTEXT, SEQUENCES, conversations=4, chunk=CHUNK)
    return Question(read_model_shape(model), budget, workload, facts=facts)


@pytest.fixture(scope="module")
def plan(checkpoint):
    """What the allocator says, asked without an engine."""
    return make_plan(question(checkpoint("qwen3_moe")))


@pytest.fixture(scope="module")
def replies(engines, checkpoint, plan, tmp_path_factory):
    model, chosen = checkpoint("qwen3_moe"), plan.choice.candidate
    of_a_gpu = tmp_path_factory.mktemp("rates") / "gpu.json"
    STATED.save(of_a_gpu)
    stock_blocks = {**ARGS, "num_gpu_blocks_override": chosen.kv_blocks, "kv_cache_memory_bytes": 1 << 26}

    def refused(settings, **args):
        return make_request(model, settings, **{**ARGS, **args})

    budget = {"gpu_memory": "2MiB"}
    return engines(
        {
            "planned": make_request(model, {**budget, "conversations": 4}, **ARGS),
            "stock": make_request(model, None, **stock_blocks),
            "slots given": make_request(model, {**budget, "expert_slots": 6}, **ARGS),
            "too little": refused({"gpu_memory": "1.5MiB"}),
            "too many slots": refused({**budget, "expert_slots": 16}),
            "too much": refused({"gpu_memory": "900TiB"}),
            "rates of a GPU": refused({**budget, "calibration": str(of_a_gpu)}),
            "KV bytes": refused(budget, kv_cache_memory_bytes=1 << 26),
            "KV blocks": refused(budget, num_gpu_blocks_override=40),
            "KV share": refused(budget, gpu_memory_utilization=0.5),
        },
        **CPU,
    )


def test_the_engine_has_the_slots_and_the_blocks_of_the_plan(replies, plan):
    chosen, reply = plan.choice.candidate, replies["planned"]
    assert 4 < chosen.expert_slots < EXPERTS, "the budget admits a choice"
    assert reply["kv_blocks"] == chosen.kv_blocks
    assert [facts["facts"]["expert_slots"] for facts in reply["counters"]] == [chosen.expert_slots]
    for layer in reply["layers"]:
        assert {shape[0] for shape in layer["buffers"].values()} == {chosen.expert_slots}
        assert layer["parameters"] == {}


def test_slots_and_blocks_fill_the_budget_to_less_than_a_block(replies):
    reply = replies["planned"]
    taken = reply["layers"][0]["buffers"]["w13_weight"][0] * LAYERS * EXPERT_BYTES + reply["kv_blocks"] * BLOCK_BYTES
    assert BUDGET - BLOCK_BYTES < taken <= BUDGET


def test_the_plan_is_told_in_five_lines(replies, plan):
    lines = replies["planned"]["told"]
    assert len(lines) == 5
    assert lines[0].startswith(f"plan of gpu_memory 2MiB: {plan.choice.candidate.expert_slots} of 16 expert slots")
    assert lines[1] == f"why: {why(plan)}"
    for line, told in zip(
        lines[2:], ("tok/s for one stream", "128MiB more would save", "4 conversations, 4 at once"), strict=True
    ):
        assert told in line
    assert " for 4, first token" in lines[2]


def test_answers_and_schedule_are_those_of_the_unpaged_engine(replies):
    planned, stock = replies["planned"], replies["stock"]
    assert planned["schedule"] == stock["schedule"]
    assert planned["phases"] == stock["phases"]
    assert all(layer["slots_true"] for layer in planned["layers"])
    assert planned["counters"][0]["total"]["faults"] > 0


def test_no_copy_of_the_experts_is_left_by_growing(replies):
    assert {layer["whole_copies"] for layer in replies["planned"]["layers"]} == {0}


def test_slots_that_are_given_stay_and_kv_gets_the_rest(replies, plan):
    reply = replies["slots given"]
    assert {shape[0] for layer in reply["layers"] for shape in layer["buffers"].values()} == {6}
    assert reply["kv_blocks"] == plan.budget.blocks_left(6) > plan.choice.candidate.kv_blocks
    assert len(reply["told"]) == 1
    assert "KV gets the rest" in reply["told"][0]


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("too little", "AdmissionFloorError", "lower --max-num-seqs to 3"),
        ("too many slots", "ConfigError", "lower expert_slots to 12"),
        ("too many slots", "ConfigError", "or set gpu_memory to 3MiB"),
        ("rates of a GPU", "ConfigError", "made on a GPU (NVIDIA H200), which says nothing of a CPU; leave it out"),
        ("too much", "ConfigError", "gpu_memory is 900TiB, which on a CPU is host memory"),
        ("KV bytes", "ConfigError", "--kv-cache-memory-bytes and gpu_memory both"),
        ("KV blocks", "ConfigError", "--num-gpu-blocks-override and gpu_memory both"),
        ("KV share", "ConfigError", "--gpu-memory-utilization and gpu_memory both"),
    ],
)
def test_what_cannot_be_divided_is_refused(replies, name, kind, told):
    found, text = replies[name]["error"]
    assert found == kind
    assert told in text


def test_a_variable_that_sizes_the_kv_is_refused(engines, checkpoint):
    request = make_request(checkpoint("qwen3_moe"), {"gpu_memory": "2MiB"}, **ARGS)
    reply = engines({"space": request}, **{**CPU, "VLLM_CPU_KVCACHE_SPACE": "1"})["space"]
    assert reply["error"][0] == "ConfigError"
    assert "VLLM_CPU_KVCACHE_SPACE sizes the KV" in reply["error"][1]


@pytest.mark.slow
def test_two_ranks_choose_alike_and_divide_the_budget_of_each(engines, checkpoint):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("two ranks need two cores")
    model = checkpoint("qwen3_moe")
    request = make_request(model, {"gpu_memory": "1MiB"}, **ARGS, tensor_parallel_size=2)
    environment = {**CPU, "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores[:2]))}
    reply = engines({"ranks": request}, **environment)["ranks"]
    ranks = [rank["facts"] for rank in reply["counters"]]
    expert_bytes = ranks[0]["expert_bytes"]  # the kernel pads half an expert of this size
    facts = EngineFacts(LAYERS * expert_bytes, KvLayout(BLOCK, BLOCK_BYTES // 2), {})
    asked = replace(question(model), total_bytes=1 << 20, facts=facts)
    chosen = make_plan(replace(asked, shape=replace(asked.shape, expert_bytes=expert_bytes))).choice.candidate
    assert (reply["kv_blocks"], len(ranks)) == (chosen.kv_blocks, 2)
    assert [rank["expert_slots"] for rank in ranks] == [chosen.expert_slots] * 2
