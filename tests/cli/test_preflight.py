"""Bad input ends with one paragraph and exit code 2, before anything of vLLM has started."""

import json
from importlib.machinery import ModuleSpec

import pytest

SLOTS = ("--expert-slots", "8")


@pytest.fixture
def full_model(model, qwen_config):
    """With a whole configuration."""
    (model / "config.json").write_text(qwen_config)
    return model


@pytest.fixture
def refused(wisp):
    """Runs a call that has to be refused; returns what it says."""

    def run(*words):
        ended = wisp("serve", *words)
        assert ended.code == 2
        assert not ended.started
        assert ended.out == ""
        assert ended.err.startswith("wisp: ")
        assert ended.err.count("\n") == 1, "one paragraph"
        return ended.err

    return run


def test_a_sound_call_starts_vllm(wisp, model):
    ended = wisp("serve", model, *SLOTS)
    assert (ended.code, ended.err) == (0, "")
    assert ended.started[0][0] == [str(model)]


def test_the_backing_store_reaches_the_engine(wisp, model):
    ended = wisp("serve", model, *SLOTS, "--backing-store", "checkpoint")
    assert ended.started[0][1].backing_store == "checkpoint"
    assert wisp("serve", model, *SLOTS, "--backing-store", "disk").code == 2


@pytest.mark.parametrize(
    ("slots", "told"),
    [
        (["0"], "must be 1 or more, not 0"),
        (["-4"], "must be 1 or more, not -4"),
        (["17"], "has 16 experts; set it to 16 or less"),
        (["many"], "a whole number of experts, such as 16, not 'many'"),
        (["8.0"], "a whole number"),
        (["nan"], "a whole number"),
        ([""], "a whole number"),
    ],
)
def test_slots_that_make_no_sense_are_refused(refused, model, slots, told):
    assert told in refused(model, "--expert-slots", *slots)


def test_slots_or_a_budget_have_to_be_named(refused, model):
    told = refused(model)
    assert "--expert-slots 16" in told
    assert "--gpu-memory 24GiB" in told


@pytest.mark.parametrize(
    ("size", "told"),
    [
        ("24", "as in --gpu-memory 24GiB"),
        ("-1", "'-1' is not a size"),
        ("24GB", "write 24GiB if"),
        ("24G", "not a size"),
        ("", "not a size"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(refused, model, size, told):
    assert told in refused(model, "--gpu-memory", size)


@pytest.mark.parametrize(
    "flags",
    [["--kv-cache-memory-bytes", "1G"], ["--gpu-memory-utilization=0.5"], ["--num-gpu-blocks-override", "64"]],
)
def test_a_second_way_to_size_the_kv_is_refused(refused, model, flags):
    assert "use one of the two, not both" in refused(model, "--gpu-memory", "24GiB", *flags)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--trace", "/no/such.npz"), "/no/such.npz cannot be read"),
        (("--calibration", "/no/such.json"), "there is no calibration"),
    ],
)
def test_a_file_to_plan_by_that_is_not_there_is_refused(refused, model, words, told):
    assert told in refused(model, "--gpu-memory", "24GiB", *words)


def test_planning_takes_options_of_its_own_only_with_a_budget(refused, model):
    assert "which is not asked for" in refused(model, *SLOTS, "--conversations", "4")


def test_a_budget_is_planned_for_the_usual_workload_and_says_so(wisp, full_model):
    ended = wisp("serve", full_model, "--gpu-memory", "24GiB", "--conversations", "9")
    arguments, settings, _ = ended.started[0]
    assert arguments == [str(full_model), "--max-num-seqs", "4", "--max-model-len", "8192"]
    assert (settings.plans, settings.gpu_memory, settings.conversations) == (True, "24GiB", 9)
    assert ended.err == "wisp: planning for --max-num-seqs 4 --max-model-len 8192, for nothing else is said\n"


def test_no_more_run_at_once_than_there_are_conversations(wisp, full_model):
    arguments, settings, _ = wisp("serve", full_model, "--gpu-memory", "24GiB", "--conversations", "2").started[0]
    assert arguments[1:3] == ["--max-num-seqs", "2"]
    assert settings.conversations == 2


def test_the_usual_workload_of_a_model_on_a_hub_has_a_length_once_it_is_downloaded(
    wisp, qwen_config, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    words = ("serve", "Owner/Some-MoE", "--gpu-memory", "24GiB")
    assert wisp(*words).started[-1][0] == ["Owner/Some-MoE", "--max-num-seqs", "4"]
    kept = tmp_path / "models--Owner--Some-MoE"
    for place, text in (("refs/main", "1234"), ("snapshots/1234/config.json", qwen_config)):
        (kept / place).parent.mkdir(parents=True)
        (kept / place).write_text(text)
    assert wisp(*words).started[-1][0] == ["Owner/Some-MoE", "--max-num-seqs", "4", "--max-model-len", "8192"]


def test_a_workload_that_is_said_stays(wisp, full_model):
    flags = ["--max-num-seqs", "2", "--max-model-len=512"]
    ended = wisp("serve", full_model, "--gpu-memory", "24GiB", *flags)
    assert (ended.started[0][0], ended.err) == ([str(full_model), *flags], "")


def test_slots_beside_a_budget_add_nothing(wisp, model):
    ended = wisp("serve", model, *SLOTS, "--gpu-memory", "24GiB")
    assert ended.started[0][0] == [str(model)]
    assert not ended.started[0][1].plans


def test_an_unknown_policy_is_refused_with_the_known_ones(refused, model):
    assert "known are lru, lfru, least_stale, fifo" in refused(model, *SLOTS, "--policy", "mru")


@pytest.mark.parametrize("option", [("--page-lock", "maybe"), ("--device", "tpu")])
def test_an_unknown_choice_is_a_usage_error(wisp, model, option):
    ended = wisp("serve", model, *SLOTS, *option)
    assert ended.code == 2
    assert option[1] in ended.err
    assert not ended.started


@pytest.mark.parametrize(
    "flags",
    [["--cpu-offload-gb", "4"], ["--cpu-offload-gb=0.5"], ["--cpu_offload_gb", "4"], ["--offload-group-size", "2"]],
)
def test_the_engines_own_offloader_is_refused(refused, model, flags):
    assert "use one of the two, not both" in refused(model, *SLOTS, *flags)


def test_no_offloading_at_all_is_fine(wisp, model):
    assert wisp("serve", model, *SLOTS, "--cpu-offload-gb", "0").code == 0


def test_a_missing_folder_is_refused(refused, model):
    assert "check the path" in refused(model / "nothing", *SLOTS)


def test_a_misspelt_relative_folder_is_refused(refused, model, monkeypatch):
    monkeypatch.chdir(model.parent.parent)
    assert "there is no folder" in refused(f"{model.parent.name}/modle", *SLOTS)


def test_a_name_without_an_owner_is_a_misspelt_folder(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "there is no folder modle" in refused("modle", *SLOTS)


def test_the_name_of_a_model_on_a_hub_is_left_to_vllm(wisp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert wisp("serve", "Owner/Some-MoE", *SLOTS).started[0][0] == ["Owner/Some-MoE"]


def test_a_file_in_the_place_of_a_folder_is_refused(refused, model):
    assert "name the folder" in refused(model / "config.json", *SLOTS)


def test_a_folder_without_configuration_is_refused(refused, model):
    (model / "config.json").unlink()
    assert "has no config.json" in refused(model, *SLOTS)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_an_unreadable_configuration_is_refused(refused, model, text):
    (model / "config.json").write_text(text)
    assert "copy it again" in refused(model, *SLOTS)


def test_a_folder_without_weights_is_refused_unless_they_are_made_up(refused, wisp, model):
    (model / "model.safetensors").unlink()
    assert "--load-format dummy" in refused(model, *SLOTS)
    assert wisp("serve", model, *SLOTS, "--load-format", "dummy").started


@pytest.mark.parametrize("size", [0, 3, 8, 40, -1], ids=["empty", "no length", "no header", "half a header", "no end"])
def test_truncated_weights_are_refused(refused, model, size):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert "copy or download it again" in refused(model, *SLOTS)


def test_a_pointer_file_in_the_place_of_weights_is_refused(refused, model):
    (model / "model.safetensors").write_text("version https://example.invalid/spec/v1\noid sha256:0\nsize 123\n")
    assert "a pointer file in its place" in refused(model, *SLOTS)


def test_a_missing_shard_is_refused(refused, model):
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors", "c": "model-3.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks 2 of the 3 files that its index names, model-2.safetensors first" in refused(model, *SLOTS)


def test_an_unreadable_index_is_refused(refused, model):
    (model / "model.safetensors.index.json").write_text("{}")
    assert "index.json cannot be read" in refused(model, *SLOTS)


def test_a_model_without_experts_is_refused(refused, model):
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3", "hidden_size": 64}))
    assert "has no experts (qwen3 is not a mixture-of-experts model)" in refused(model, *SLOTS)


@pytest.mark.parametrize("name", ["num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"])
@pytest.mark.parametrize("nested", [False, True])
def test_the_experts_are_counted_under_every_known_name(refused, model, name, nested):
    config = {"text_config": {name: 6}} if nested else {name: 6}
    (model / "config.json").write_text(json.dumps(config))
    assert "has 6 experts" in refused(model, *SLOTS)


def test_a_missing_vllm_is_told(refused, model, monkeypatch):
    monkeypatch.setattr("wisp.cli.preflight.find_spec", lambda name: None)
    assert "vLLM is not installed" in refused(model, *SLOTS)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.0.0"])
def test_a_vllm_of_another_version_is_refused(refused, model, monkeypatch, tmp_path, version):
    pytest.importorskip("torch")
    (tmp_path / "_version.py").write_text(f"__version__ = version = '{version}'\n")
    spec = ModuleSpec("vllm", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr("wisp.cli.preflight.find_spec", lambda name: spec)
    told = refused(model, *SLOTS)
    assert version in told
    assert "0.32.0" in told


@pytest.mark.parametrize("allowed", ["", "lora_resolver", "a,b"])
def test_an_allow_list_of_plug_ins_without_wisp_is_refused(refused, model, monkeypatch, allowed):
    monkeypatch.setenv("VLLM_PLUGINS", allowed)
    assert "add wisp to that list or unset it" in refused(model, *SLOTS)


def test_an_allow_list_of_plug_ins_with_wisp_is_fine(wisp, model, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "lora_resolver,wisp")
    assert wisp("serve", model, *SLOTS).started


def test_a_gpu_is_refused_where_torch_is_a_cpu_build(refused, model, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "is a CPU build" in refused(model, *SLOTS, "--device", "cuda")


def test_a_gpu_is_refused_where_torch_sees_none(refused, model, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "PyTorch sees none" in refused(model, *SLOTS, "--device", "cuda")
