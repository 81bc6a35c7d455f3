"""What a paged engine is made of, what it counts, what it refuses, and how several of them get along."""

import pytest
from workload import EAGER, POLICIES, SLOTS, make_phases, make_request

from wisp.engines.vllm.patches.whole_weights import METHODS
from wisp.simulate import simulate
from wisp.trace import RoutingTrace

pytestmark = pytest.mark.engine
EXPERTS, LAYERS, TENSORS = 16, 3, {"w13_weight": [64, 64], "w2_weight": [64, 32]}
EXPERT_BYTES = 2 * (64 * 64 + 64 * 32)
RUNS = {str(slots): (slots, "lru") for slots in SLOTS} | {policy: (5, policy) for policy in POLICIES}
every_run = pytest.mark.parametrize("run", RUNS)


def shaped(experts):
    return {name: [experts, *shape] for name, shape in TENSORS.items()}


def test_without_a_configuration_the_layers_are_stock(qwen):
    assert len(qwen["stock"]["layers"]) == LAYERS
    for layer in qwen["stock"]["layers"] + qwen["stock again"]["layers"]:
        assert layer == {
            "class": "vllm.model_executor.layers.fused_moe.routed_experts.RoutedExperts",
            "parameters": shaped(EXPERTS),
            "buffers": {},
            "own": [],
            "kernel_own": [],
        }


@every_run
def test_all_experts_exist_in_the_store_alone(qwen, run):
    slots, _ = RUNS[run]
    assert len(qwen[run]["layers"]) == LAYERS
    for layer in qwen[run]["layers"]:
        assert layer["class"] == "wisp.engines.vllm.layer.PagedRoutedExperts"
        assert layer["parameters"] == {}
        assert layer["buffers"] == shaped(slots)
        assert layer["whole_copies"] == (0 if slots < EXPERTS else 2 * LAYERS), "beside the slots themselves"


@every_run
def test_every_slot_holds_the_expert_that_it_should(qwen, run):
    assert all(layer["slots_true"] for layer in qwen[run]["layers"])


def test_broken_slots_do_not(qwen):
    assert not all(layer["slots_true"] for layer in qwen["broken"]["layers"])


@every_run
def test_it_faults_step_by_step_as_simulated(qwen, run):
    slots, policy = RUNS[run]
    assert len(qwen[run]["plans"]) == LAYERS
    for plans in qwen[run]["plans"].values():
        replay = simulate(RoutingTrace.from_steps(EXPERTS, [[plan["experts"] for plan in plans]]), slots, policy)
        assert [plan["faults"] for plan in plans] == replay.faults[0].tolist()
        assert [plan["evictions"] for plan in plans] == replay.evictions[0].tolist()
        assert [plan["waves"] for plan in plans] == replay.waves[0].tolist()


@every_run
def test_the_counters_are_the_sums_of_the_plans(qwen, run):
    slots, _ = RUNS[run]
    (counters,) = qwen[run]["counters"]
    assert counters["layers"].keys() == qwen[run]["plans"].keys()
    for name, fields in counters["layers"].items():
        plans = qwen[run]["plans"][name]
        assert fields.pop("copy_seconds") > 0
        faults = sum(plan["faults"] for plan in plans)
        assert fields == {
            "steps": len(plans),
            "references": sum(len(plan["experts"]) for plan in plans),
            "faults": faults,
            "bytes_moved": faults * EXPERT_BYTES,
            "evictions": sum(plan["evictions"] for plan in plans),
            "waves": sum(plan["waves"] for plan in plans),
        }
    assert counters["facts"] == {
        "num_experts": EXPERTS,
        "expert_slots": slots,
        "expert_bytes": EXPERT_BYTES,
        "kernel": counters["facts"]["kernel"],
        "device": "cpu",
        "expert_ranks": 1,
        "engine_ranks": 1,
    }
    assert counters["facts"]["kernel"].endswith("CPUUnquantizedExperts")
    assert not counters["page_locked"], "on a CPU nothing is"


def test_more_slots_fault_less_under_lru(qwen):
    faults = [qwen[str(slots)]["counters"][0]["total"]["faults"] for slots in SLOTS]
    assert faults == sorted(faults, reverse=True)
    assert faults[-1] <= LAYERS * EXPERTS, "with a slot for each, every expert comes once"


def test_a_step_that_fits_is_one_wave(qwen):
    for plans in qwen["16"]["plans"].values():
        assert len(plans) == len([step for step in qwen["16"]["schedule"] if step])


REFUSED_CALLS = {
    **{name: f"{name} does not work with paging yet: it {why}" for name, why in METHODS.items()},
    "sleep": "sleep at level 1 does not work with paging yet; pause at level 0, or end the server",
}
MINICPM = {
    "architectures": ["MiniCPMForCausalLM"],
    **{"scale_emb": 1, "scale_depth": 1.0, "dim_model_base": 64, "hidden_act": "silu"},
}
"""One that computes its experts with a kernel of vLLM, but not in vLLM's layer."""


@pytest.fixture(scope="module")
def refused(engines, checkpoint):
    moe = checkpoint("qwen3_moe")
    wisp = {"expert_slots": 5}
    return engines(
        {
            "host memory": make_request(moe, {**wisp, "host_memory": "1GiB"}),
            "dense": make_request(checkpoint("dense"), wisp),
            "below top-k": make_request(moe, {"expert_slots": 3}),
            "past the layer": make_request(moe, wisp, load_format="dummy", hf_overrides=MINICPM),
            "called": {**make_request(moe, wisp), "calls": [*REFUSED_CALLS], "phases": make_phases()[:1]},
        },
        **EAGER,
    )


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("host memory", "HostMemoryError", "needs 756KiB of host memory, but host_memory in the wisp configuration"),
        ("dense", "UnsupportedError", "has no routed experts"),
        ("below top-k", "ConfigError", "set expert_slots to 4 or more"),
        ("past the layer", "UnsupportedError", "MiniCPMForCausalLM computes them past its layer of routed experts"),
    ],
)
def test_what_cannot_be_paged_does_not_start(refused, name, kind, message):
    error, text = refused[name]["error"]
    assert error == kind
    assert message in text


@pytest.mark.parametrize("method", REFUSED_CALLS)
def test_what_would_reach_for_the_experts_while_it_runs_is_refused_and_harms_nothing(refused, method):
    error, after = refused["called"]["calls"][method]
    assert error == ["UnsupportedError", REFUSED_CALLS[method]]
    answers = refused["called"]["phases"][0]
    assert [each["tokens"] for each in after] == [each["tokens"] for each in answers]
    assert [each["logprobs"] for each in after] == [each["logprobs"] for each in answers]


@pytest.fixture(scope="module")
def two(run_script, checkpoint):
    return run_script("run_two_engines.py", checkpoint("qwen3_moe"), **EAGER)


def test_two_engines_in_a_process_stay_apart(two):
    assert two["together"] == [two["alone"], two["alone"]]
    assert two["steps"]["before"] == two["steps"]["after the other's start"] > 0
    assert two["steps"]["of the other"] == 0


def test_a_dropped_engine_takes_its_backing_stores_along(two):
    assert two["workers"] == [2, 1]


def test_an_aborted_request_leaves_the_others_alone(two):
    assert two["aborted"] == two["alone"]
    assert two["after an abort"] == two["alone"]


def test_weights_are_not_reloaded_into_slots(two):
    refused = "UnsupportedError: weights cannot be reloaded into a paged engine yet; start a new one instead"
    assert two["reload"] == two["load"] == refused


def test_the_counters_of_dead_processes_are_swept_up(two):
    from wisp.engines.vllm.counters import counter_files

    counter_files.path_for("next", rank=0)
    assert not list(counter_files.directory().glob(f"{two['process']}-*"))
