"""`wisp plan`: a config.json in, a split and the command that serves by it out; bad input is one paragraph."""

import json
import re
import resource
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wisp.allocator import STATED
from wisp.kv_trace import KvEvent, KvTrace
from wisp.recording import Recording
from wisp.trace import RoutingTrace

CONFIGS = Path(__file__).parents[1] / "allocator" / "configs"
QWEN = CONFIGS / "qwen3-30b-a3b.json"
ISSUE = ("--gpu-memory", "24GiB", "--max-model-len", "8192", "--max-num-seqs", "4")
LIGHT = """
import sys
from wisp.cli.main import main
sys.argv = ["wisp", "plan", *{words!r}]
try:
    main()
except SystemExit as end:
    print("code", end.code or 0)
print("heavy", *sorted({{"torch", "vllm", "transformers"}} & set(sys.modules)))
"""


@pytest.fixture
def planned(wisp):
    """`planned(model, ...)`: what --json says."""

    def run(*words):
        ended = wisp("plan", *words, "--json")
        assert ended.code == 0, ended.err
        return json.loads(ended.out)

    return run


@pytest.fixture
def refused(wisp):
    def run(*words):
        ended = wisp("plan", *words)
        assert ended.code == 2
        assert ended.out == ""
        assert ended.err.startswith("wisp: ")
        assert ended.err.count("\n") == 1, "one paragraph"
        return ended.err

    return run


def save_trace(path, *, layers=48, steps=64, experts=128, tokens=1):
    """Each step needs eight experts of each layer."""
    member = np.random.default_rng(1).random((layers, steps, experts)).argsort(axis=2).argsort(axis=2) < 8
    RoutingTrace.from_membership(member, np.full(steps, tokens, dtype=np.int64)).save(path)
    return path


def test_json_has_the_choice_and_the_table(planned):
    found = planned(QWEN, *ISSUE)
    assert found["choice"] in found["table"]
    assert {"expert_slots", "kv_tokens", "decode_tok_s", "ttft_s", "hit_ratio"} <= set(found["choice"])
    assert [row["expert_slots"] for row in found["table"]] == list(range(8, found["choice"]["expert_slots"] + 1))
    assert sum(found["bytes"].values()) == 24 * 2**30
    assert "stated prior" in found["routing"]
    assert found["warnings"] == []
    assert all(row["is_admissible"] for row in found["table"])


def test_the_serve_line_is_the_choice(planned, tmp_path):
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "config.json").write_text(QWEN.read_text())
    for model in (folder, folder / "config.json"):
        found = planned(model, *ISSUE, "--kv-cache-dtype", "fp8")
        words = shlex.split(found["serve"])
        assert words[:3] == ["wisp", "serve", str(folder)]
        options = dict(zip(words[3::2], words[4::2], strict=True))
        assert options == {
            "--expert-slots": str(found["choice"]["expert_slots"]),
            "--kv-cache-memory-bytes": str(found["choice"]["kv_blocks"] * found["block_bytes"]),
            "--max-model-len": "8192",
            "--max-num-seqs": "4",
            "--max-num-batched-tokens": "8192",
            "--kv-cache-dtype": "fp8",
        }
    assert planned(QWEN, *ISSUE)["serve"].startswith("wisp serve MODEL --expert-slots"), "beside it lies no model"


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_a_downloaded_model_is_planned_for_by_its_name(planned, monkeypatch, tmp_path, variable):
    for other in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    below = {"HF_HUB_CACHE": "", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}[variable]
    kept = tmp_path / below / "models--Owner--Some-MoE"
    for revision, text in (("0" * 40, "{}"), ("1" * 40, QWEN.read_text())):
        (kept / "snapshots" / revision).mkdir(parents=True)
        (kept / "snapshots" / revision / "config.json").write_text(text)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("1" * 40)
    assert planned("Owner/Some-MoE", *ISSUE)["serve"].startswith("wisp serve Owner/Some-MoE --expert-slots 38 ")


def test_a_model_that_was_not_downloaded_is_refused_with_the_command_that_downloads_it(refused, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert "`hf download Owner/Some-MoE config.json`" in refused("Owner/Some-MoE", *ISSUE)
    assert "there is no nowhere; name a config.json" in refused("nowhere", *ISSUE)


def test_rows_beside_the_checkpoint_s_files_are_counted_and_the_serve_line_asks_for_them(planned):
    memory, files = planned(QWEN, *ISSUE), planned(QWEN, *ISSUE, "--backing-store", "checkpoint")
    expert_bytes = files["slot_bytes"] // 48
    assert files["bytes"]["staging"] - memory["bytes"]["staging"] == (128 - 8 - 16) * expert_bytes
    assert sum(files["bytes"].values()) == 24 * 2**30
    assert shlex.split(files["serve"])[-2:] == ["--backing-store", "checkpoint"]
    assert "--backing-store" not in memory["serve"]


def test_files_that_do_not_hold_what_the_kernel_takes_are_not_planned_for(refused, tmp_path):
    quantised = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (tmp_path / "config.json").write_text(
        json.dumps({**json.loads(QWEN.read_text()), "quantization_config": quantised})
    )
    told = refused(tmp_path, *ISSUE, "--backing-store", "checkpoint")
    assert "experts are laid out anew for their kernel" in told
    assert "leave --backing-store out" in told


def test_people_see_where_the_bytes_go_the_choice_and_why(wisp, planned):
    ended = wisp("plan", QWEN, *ISSUE)
    found = planned(QWEN, *ISSUE)
    assert ended.code == 0
    assert ended.err == ""
    for told in ("engine overhead", "expert slots", "choice", "second", "128MiB more", "stated prior", "NVIDIA H200"):
        assert told in ended.out
    assert ended.out.splitlines()[-1] == found["serve"]
    assert found["why"] in ended.out
    assert max(len(row) for row in ended.out.splitlines() if row.startswith("    ")) <= 80


@pytest.mark.parametrize("model", ["kimi-vl-a3b.json", "olmoe-1b-7b.json"])
def test_a_table_of_much_kv_and_many_tokens_a_second_is_not_cut_off(wisp, model):
    rows = wisp("plan", CONFIGS / model, "--gpu-memory", "80GiB").out.splitlines()
    assert any(row.rstrip().endswith(" second") for row in rows)
    assert any(row.rstrip().endswith(" choice") for row in rows)


def test_table_3_from_the_command_line(planned):
    """7,714 MiB of engine overhead, 528 of activations and staging: the 8.05 GiB that the paper's rows imply."""
    words = (
        "--gpu-memory",
        "48.7GiB",
        "--max-model-len",
        "4096",
        "--max-num-seqs",
        "1",
        "--engine-overhead",
        "7714MiB",
    )
    tokens = {row["expert_slots"]: row["kv_tokens"] for row in planned(QWEN, *words)["table"]}
    assert (tokens[8], tokens[16], tokens[32], tokens[64]) == (375_792, 338_928, 265_200, 117_744)


def test_the_context_is_the_models_if_that_is_shorter(planned):
    assert planned(CONFIGS / "olmoe-1b-7b.json", "--gpu-memory", "12GiB")["workload"]["context"] == 4096


def test_a_trace_takes_the_place_of_the_prior(planned, tmp_path):
    found = planned(QWEN, *ISSUE, "--trace", save_trace(tmp_path / "t.npz"))
    assert "64 decode steps" in found["routing"]


def test_speed_is_told_of_as_many_streams_as_were_recorded(wisp, planned, tmp_path):
    trace = save_trace(tmp_path / "t.npz", tokens=2)
    assert "tok/s 2" in wisp("plan", QWEN, *ISSUE, "--trace", trace).out
    found = planned(QWEN, *ISSUE, "--trace", trace)
    assert found["streams"] == 2
    assert found["choice"]["decode_tok_s_all"] == 2 * found["choice"]["decode_tok_s"]
    assert "tok/s 4" in wisp("plan", QWEN, *ISSUE).out
    assert planned(QWEN, *ISSUE)["streams"] == 4


def test_the_most_sequences_are_written_out(wisp, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    many = ("--gpu-memory", "100GiB", "--max-model-len", "256", "--max-num-seqs", "1024")
    assert "tok/s 1024" in wisp("plan", QWEN, *many).out


def test_a_recording_tells_decode_steps_and_its_experts(wisp, tmp_path):
    routing = RoutingTrace.load(save_trace(tmp_path / "t.npz"))
    prefill = np.array([2, 0] * 32, dtype=np.int64)
    Recording(routing, prefill_tokens=prefill, expert_bytes=2**20).save(tmp_path / "r.npz")
    ended = wisp("plan", QWEN, *ISSUE, "--trace", tmp_path / "r.npz", "--json")
    assert "32 decode steps" in json.loads(ended.out)["routing"]
    assert ended.err == "wisp: warning: the trace has experts of 1MiB, this model of 9MiB\n"


def with_kv(path, *, conversations=6, history=16_384):
    """A recording of this model in which long conversations come back in turn; each turn decodes five tokens."""
    routing = RoutingTrace.load(save_trace(path, steps=72))
    starts = np.arange(0, 72, 6)
    blocks = history // 16
    names = np.concatenate([1000 * blocks * (turn % conversations) + np.arange(blocks)[::-1] for turn in range(12)])
    events = np.repeat(np.where(np.arange(12) < conversations, KvEvent.INSERT, KvEvent.HIT), blocks)
    kv = KvTrace(
        names.astype(np.uint64),
        np.repeat(starts, blocks),
        events.astype(np.uint8),
        np.zeros(0, dtype=np.int64),
        16,
        10**6,
    )
    prefill = np.where(np.isin(np.arange(72), starts), 100, 0)
    routing = RoutingTrace(routing.fields()["bits"], 128, np.where(prefill > 0, prefill, 1))
    Recording(routing, prefill, np.ones(72, dtype=np.int64), kv=kv).save(path)
    return path


def test_recorded_kv_references_take_the_place_of_the_prior(planned, tmp_path):
    words = (QWEN, "--gpu-memory", "24GiB", "--max-model-len", "32768", "--max-num-seqs", "1")
    words = (*words, "--max-num-batched-tokens", "2048", "--trace", with_kv(tmp_path / "t.npz"))
    found = planned(*words)
    assert (
        "recorded: 12,288 references to blocks of 16 tokens in 12 turns, of which 6,144 come back" in found["kv_reuse"]
    )
    turn = found["workload"]
    assert (turn["history"], turn["new"], turn["output"]) == (8192, 100, 5)
    assert found["choice"]["lost_share"] == 0, "all six conversations of 16,384 tokens are kept"
    assert found["choice"]["kv_tokens"] >= 6 * 16_384
    assert found["table"][-1]["lost_share"] == 1, "one less is none: they come back in turn"
    prior = planned(*words, "--conversations", 1)
    assert prior["kv_reuse"].endswith("as --conversations is given")
    assert prior["choice"]["expert_slots"] > found["choice"]["expert_slots"]


def test_a_trace_without_kv_references_is_told(wisp, tmp_path):
    ended = wisp("plan", QWEN, *ISSUE, "--trace", save_trace(tmp_path / "t.npz"))
    assert "blocks go by last use, as the trace has no KV references." in ended.out


def test_a_calibration_of_this_machine_and_model_is_taken_without_a_warning(wisp, tmp_path, monkeypatch):
    monkeypatch.setattr("wisp.cli.plan.gpu_name", lambda: "NVIDIA L4")
    replace(STATED, machine="NVIDIA L4", fault_bytes_per_second=20e9).save(tmp_path / "c.json")
    ended = wisp("plan", QWEN, *ISSUE, "--calibration", tmp_path / "c.json", "--json")
    found = json.loads(ended.out)
    assert (ended.err, found["warnings"]) == ("", [])
    assert found["costs"]["fault_bytes_per_second"] == 20e9


def test_what_a_calibration_says_of_itself_is_told(wisp, tmp_path):
    replace(STATED, notes=("the fit meets every measured decode step within 7%",)).save(tmp_path / "c.json")
    ended = wisp("plan", QWEN, *ISSUE, "--calibration", tmp_path / "c.json")
    assert "of the calibration: the fit meets every measured decode step within 7%." in ended.out


def test_a_calibration_of_another_machine_or_model_is_warned_of(wisp, tmp_path, monkeypatch):
    monkeypatch.setattr("wisp.cli.plan.gpu_name", lambda: "NVIDIA L4")
    STATED.save(tmp_path / "c.json")
    ended = wisp("plan", CONFIGS / "mixtral-8x7b.json", "--gpu-memory", "48GiB", "--calibration", tmp_path / "c.json")
    assert ended.code == 0
    machine, model = ended.err.splitlines()
    assert machine == "wisp: warning: costs were measured on NVIDIA H200 but this machine has NVIDIA L4"
    assert "measured with qwen3_moe" in model
    assert "not with mixtral" in model


def test_a_machine_without_a_gpu_is_another_machine_too(wisp, tmp_path, monkeypatch):
    monkeypatch.setattr("wisp.cli.plan.gpu_name", lambda: None)
    monkeypatch.setattr("wisp.cli.plan.cpu_name", lambda: "A CPU, 2 threads")
    STATED.save(tmp_path / "c.json")
    ended = wisp("plan", QWEN, *ISSUE, "--calibration", tmp_path / "c.json")
    assert ended.err == "wisp: warning: costs were measured on NVIDIA H200 but this machine has A CPU, 2 threads\n"


def test_a_calibration_of_a_cpu_is_refused(refused, tmp_path):
    replace(STATED, machine="A CPU, 2 threads", device="cpu").save(tmp_path / "c.json")
    told = refused(QWEN, *ISSUE, "--calibration", tmp_path / "c.json")
    assert "the calibration was made on a CPU (A CPU, 2 threads), which says nothing of a GPU; leave it out" in told


def test_a_kept_calibration_of_this_machine_s_cpu_is_left_aside_and_that_is_told(wisp, planned, monkeypatch):
    from wisp.allocator.calibration_files import path_for

    monkeypatch.setattr("wisp.cli.plan.gpu_name", lambda: None)
    monkeypatch.setattr("wisp.cli.plan.cpu_name", lambda: "A CPU, 2 threads")
    without = wisp("plan", QWEN, *ISSUE)
    path = path_for("A CPU, 2 threads", STATED.model)
    path.parent.mkdir(parents=True)
    replace(STATED, machine="A CPU, 2 threads", device="cpu", fault_bytes_per_second=20e9).save(path)
    ended = wisp("plan", QWEN, *ISSUE)
    assert without.err == ""
    assert ended.err == (
        "wisp: warning: the calibration of A CPU, 2 threads is left aside: this plans a GPU's memory, by the stated "
        "costs\n"
    )
    assert ended.out == without.out
    assert planned(QWEN, *ISSUE)["costs"]["machine"] == STATED.machine


def test_more_than_the_calibrated_machine_has_is_refused(refused, tmp_path):
    replace(STATED, device_bytes=16 * 2**30).save(tmp_path / "c.json")
    told = refused(QWEN, *ISSUE, "--calibration", tmp_path / "c.json")
    assert "24GiB but NVIDIA H200 has 16GiB" in told


def test_more_than_this_machine_has_is_warned_of(wisp, monkeypatch):
    monkeypatch.setattr("wisp.cli.plan.gpu_name", lambda: "NVIDIA L4")
    monkeypatch.setattr("wisp.cli.plan.gpu_bytes", lambda: 23034 << 20)
    ended = wisp("plan", QWEN, *ISSUE)
    assert ended.code == 0
    assert "--gpu-memory is 24GiB but NVIDIA L4 here has 22.49GiB: it cannot serve this" in ended.err
    assert wisp("plan", QWEN, "--gpu-memory", "22GiB").err == ""


def test_the_calibration_of_this_machine_and_model_is_taken_by_itself(wisp, planned, monkeypatch):
    from wisp.allocator.calibration_files import path_for

    monkeypatch.setattr("wisp.cli.plan.gpu_name", lambda: "NVIDIA L4")
    path = path_for("NVIDIA L4", STATED.model)
    path.parent.mkdir(parents=True)
    replace(STATED, machine="NVIDIA L4", fault_bytes_per_second=20e9).save(path)
    assert planned(QWEN, *ISSUE)["costs"]["fault_bytes_per_second"] == 20e9
    assert "calibrated ones, measured on NVIDIA L4" in wisp("plan", QWEN, *ISSUE).out
    assert planned(CONFIGS / "olmoe-1b-7b.json", "--gpu-memory", "12GiB")["costs"]["machine"] == STATED.machine


def test_a_calibration_by_other_versions_is_warned_of(wisp, tmp_path, monkeypatch):
    monkeypatch.setattr("wisp.allocator.calibration_files.installed_versions", lambda: {"vllm": "0.32.5"})
    monkeypatch.setattr("wisp.cli.plan.gpu_name", lambda: STATED.machine)
    replace(STATED, versions={"vllm": "0.31.0"}).save(tmp_path / "c.json")
    ended = wisp("plan", QWEN, *ISSUE, "--calibration", tmp_path / "c.json")
    assert ended.err == "wisp: warning: costs were measured with vllm 0.31.0, but 0.32.5 is installed\n"


def test_quantised_experts_are_planned_with_a_warning(wisp):
    ended = wisp("plan", CONFIGS / "minimax-m2.json", "--gpu-memory", "80GiB")
    assert "experts of FP8, 128 x 128 block scales were never compared with an engine" in ended.err
    assert "never compared with an engine" not in wisp("plan", QWEN, *ISSUE).err


@pytest.mark.parametrize(
    ("size", "told"),
    [
        ("24", "write the unit, as in --gpu-memory 24GiB"),
        ("24GB", "write 24GiB if that is what you mean, or 24000000000 (bytes; 22.35GiB) for what it says"),
        ("-1", "'-1' is not a size"),
        ("24G", "not a size"),
        ("", "not a size"),
        ("much", "not a size"),
        ("0GiB", "0B is too little"),
        ("8GiB", "or give 11582MiB"),
        ("11GiB", "lower --max-num-seqs to 3"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(refused, size, told):
    assert told in refused(QWEN, "--gpu-memory", size)


def test_the_size_that_a_refusal_advises_is_taken_as_it_stands(refused, planned):
    told = refused(QWEN, "--gpu-memory", "8GiB")
    (advised,) = re.findall(r"or give (\S+)$", told.strip())
    assert planned(QWEN, "--gpu-memory", advised)["choice"]["expert_slots"] == 8


@pytest.mark.parametrize(("conversations", "sequences"), [(2, 2), (4, 4), (9, 4)])
def test_no_more_run_at_once_than_there_are_conversations(planned, conversations, sequences):
    found = planned(QWEN, "--gpu-memory", "24GiB", "--conversations", conversations)
    assert (found["workload"]["sequences"], found["workload"]["conversations"]) == (sequences, conversations)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--max-num-seqs", "0"), "--max-num-seqs must be 1 or more, not 0"),
        (("--max-model-len", "-5"), "--max-model-len must be 1 or more, not -5"),
        (("--max-model-len", "50000"), "made for 40960 tokens; set it to 40960 or less"),
        (("--max-num-seqs", "4", "--conversations", "2"), "set it to 4 or more"),
        (("--conversations", "0"), "set it to 1 or more"),
        (("--kv-cache-dtype", "int3"), "auto or fp8"),
        (("--engine-overhead", "2"), "--engine-overhead 2GiB"),
        (("--trace", "/no/such.npz"), "/no/such.npz cannot be read"),
        (("--calibration", "/no/such.json"), "there is no calibration"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(refused, words, told):
    assert told in refused(QWEN, "--gpu-memory", "24GiB", *words)


@pytest.mark.parametrize(
    ("trace", "told"),
    [
        ({"experts": 64}, "64 experts but the model has 48 of 128"),
        ({"layers": 16}, "16 layers"),
        ({"steps": 0}, "the trace is empty"),
        ({"tokens": 2000}, "tells nothing about decoding"),
    ],
)
def test_a_trace_of_something_else_is_refused(refused, tmp_path, trace, told):
    assert told in refused(QWEN, *ISSUE, "--trace", save_trace(tmp_path / "t.npz", **trace))


def test_a_file_that_is_no_trace_is_refused(refused, tmp_path):
    (tmp_path / "t.npz").write_text("no trace")
    assert "not a routing trace" in refused(QWEN, *ISSUE, "--trace", tmp_path / "t.npz")


@pytest.mark.parametrize(
    ("model", "told"),
    [("nowhere", "name a config.json, or the folder that holds one"), ("/no/such/folder", "there is no")],
)
def test_a_model_that_is_not_here_is_refused(refused, model, told):
    assert told in refused(model, *ISSUE)


def test_a_model_without_experts_is_refused(refused, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": 2}))
    assert "qwen3 has no routed experts" in refused(tmp_path, *ISSUE)


def test_a_size_has_to_be_given(wisp):
    ended = wisp("plan", QWEN)
    assert ended.code == 2
    assert "--gpu-memory" in ended.err


FEW_AND_MANY = [
    *((path.stem, "--gpu-memory", "96GiB") for path in sorted(CONFIGS.glob("*.json"))),
    ("deepseek-v3", "--gpu-memory", "700GiB", "--max-num-seqs", "512", "--max-model-len", "1024"),
]


@pytest.mark.parametrize("call", FEW_AND_MANY, ids=" ".join)
def test_every_model_is_planned_within_two_seconds_without_torch(call):
    name, *flags = call
    words = [str(CONFIGS / f"{name}.json"), *flags, "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", LIGHT.format(words=words)],
        capture_output=True,
        text=True,
        check=True,
        env={"OPENBLAS_NUM_THREADS": "1"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.endswith("code 0\nheavy\n")
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds < 2.0  # of the processor: other tests may be running beside it
