"""With the checkpoint's files as the backing store an engine answers the same, and has no memory for the experts."""

import re

import pytest
import torch
from workload import EAGER, assert_identical, make_request

pytestmark = pytest.mark.engine

FILES = {"expert_slots": 5, "backing_store": "checkpoint"}
LARGE = {"hidden_size": 256, "moe_intermediate_size": 1024}
LAYERS, EXPERTS = 3, 16
EXPERT_BYTES = LAYERS * EXPERTS * 3 * 256 * 1024 * 2
"""Of all experts of the large model: 72 MiB."""


def fused_copy(path, target):
    """The checkpoint with all experts of a layer in two tensors."""
    from safetensors.torch import load_file, save_file

    target.mkdir()
    for file in path.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    tensors = load_file(path / "model.safetensors")
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}.mlp.experts"
        experts = {
            kind: [tensors.pop(f"{prefix}.{expert}.{kind}_proj.weight") for expert in range(EXPERTS)]
            for kind in ("gate", "up", "down")
        }
        both = [torch.cat(pair) for pair in zip(experts["gate"], experts["up"], strict=True)]
        tensors[f"{prefix}.gate_up_proj"], tensors[f"{prefix}.down_proj"] = (
            torch.stack(both),
            torch.stack(experts["down"]),
        )
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.fixture(scope="module")
def replies(engines, checkpoint, tmp_path_factory):
    large = checkpoint("qwen3_moe", **LARGE)
    fused = fused_copy(large, tmp_path_factory.mktemp("fused") / "model")
    requests = {
        "stock": make_request(large),
        "memory": make_request(large, {"expert_slots": 5}),
        "files": make_request(large, FILES),
        "fused": make_request(fused, FILES),
        "broken": make_request(large, {**FILES, "break_expert": True}),
        "another": make_request(checkpoint("glm4_moe"), FILES),
        "another, stock": make_request(checkpoint("glm4_moe")),
        "padded": make_request(checkpoint("qwen3_moe", moe_intermediate_size=48), FILES),
        "cast": make_request(checkpoint("qwen3_moe"), FILES, dtype="float16"),
        "biases": make_request(checkpoint("gpt_oss"), {**FILES, "expert_slots": 3}),
    }
    return engines(requests, **EAGER)


@pytest.mark.parametrize("name", ["memory", "files", "fused"])
def test_the_answers_are_those_of_the_unpaged_engine(replies, name):
    assert_identical(replies[name], replies["stock"])
    assert all(layer["slots_true"] for layer in replies[name]["layers"])


def test_so_they_are_for_groups_of_experts_and_dense_layers(replies):
    assert_identical(replies["another"], replies["another, stock"])


def test_a_wrong_expert_shows(replies):
    broken, stock = replies["broken"], replies["stock"]
    assert broken["schedule"] == stock["schedule"]
    assert broken["phases"] != stock["phases"]


def test_faults_are_the_same_from_either_store(replies):
    counted = [replies[name]["counters"][0]["total"] for name in ("memory", "files")]
    for total in counted:
        total.pop("copy_seconds")
    assert counted[0] == counted[1]
    assert counted[0]["bytes_moved"] > EXPERT_BYTES


def test_the_process_has_no_memory_of_its_own_for_the_experts(replies):
    saved = replies["memory"]["private_bytes"] - replies["files"]["private_bytes"]
    assert saved > 0.75 * EXPERT_BYTES  # two processes differ by a tenth of that anyway


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("padded", "but the kernel pads w13_weight of .* set backing_store to memory"),
        ("cast", r"are torch.bfloat16 in the checkpoint and torch.float16 for the kernel \(--dtype\)"),
        ("biases", "have w13_bias beside their weights, .* set backing_store to memory"),
    ],
)
def test_what_files_do_not_hold_as_the_kernel_takes_it_is_refused(replies, name, reason):
    kind, text = replies[name]["error"]
    assert kind == "UnsupportedError"
    assert re.search(reason, text), text
