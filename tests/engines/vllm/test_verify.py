"""`wisp verify` says identical only of what is identical, and different of what is broken."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from workload import EAGER

from wisp.engines.vllm.engine_process import ENGINE_FLAGS, engine_flags
from wisp.engines.vllm.serve import merged_config
from wisp.engines.vllm.settings import WispSettings
from wisp.engines.vllm.verify.arm import Answer, ArmRequest, ArmResult
from wisp.engines.vllm.verify.clients import _as_served, serve_arguments
from wisp.engines.vllm.verify.compare import judge
from wisp.engines.vllm.verify.workload import WHEN_IDLE, Workload, standard_workload
from wisp.errors import ConfigError

MODEL = Path(__file__).parents[3] / "demo" / "model"
ANSWER = Answer(token_ids=[4, 5], logprobs=[{"4": -0.1, "7": -2.5}, {"5": -0.25, "1": -3.0}], cached_tokens=0)
UNPAGED = ArmResult(answers=[ANSWER, ANSWER], steps=[[(0, 3), (1, 2)], [(0, 1), (1, 1)]], counters=None, seconds=1.0)


def other(**changes):
    """`UNPAGED` with the second answer changed."""
    return replace(UNPAGED, answers=[ANSWER, replace(ANSWER, **changes)])


def test_the_same_is_identical():
    assert judge(UNPAGED, UNPAGED).identical


def test_another_token_is_not():
    verdict = judge(UNPAGED, other(token_ids=[4, 6]))
    assert not verdict.identical
    assert (verdict.same_tokens, verdict.same_logprobs) == (1, 2)


def test_a_last_bit_is_not():
    verdict = judge(UNPAGED, other(logprobs=[{"4": -0.1, "7": -2.5}, {"5": -0.25000000000000006, "1": -3.0}]))
    assert not verdict.identical
    assert 0 < verdict.largest_difference < 1e-15


def test_a_missing_log_probability_is_not():
    assert not judge(UNPAGED, other(logprobs=[{"4": -0.1, "7": -2.5}, {"5": -0.25}])).identical


def test_another_schedule_is_not():
    assert not judge(UNPAGED, replace(UNPAGED, steps=[[(0, 5)]])).identical


def test_of_what_a_client_is_not_shown_nothing_is_asked():
    ten = {str(token): -float(token) for token in range(10)}
    unpaged = replace(UNPAGED, answers=[Answer([4], [{**ten, "99": -50.0}], 0)])
    paged = replace(UNPAGED, answers=[Answer([4], [ten], 0)])
    assert not judge(unpaged, paged).identical
    assert judge(_as_served(unpaged, paged), paged).identical


@pytest.mark.parametrize("unshown", [True, False])
def test_a_server_is_told_all_that_is_to_be_compared(unshown):
    settings = WispSettings(5, policy="lfru", decide="host", backing_store="checkpoint", unshown_formats=unshown)
    _, *words = serve_arguments("a/model", settings)
    options = dict(zip(words[::2], words[1::2], strict=True))
    additional = json.loads(options.pop("--additional-config", "{}"))
    own = {name.removeprefix("--").replace("-", "_"): value for name, value in options.items()}
    own["expert_slots"] = int(own["expert_slots"])
    assert WispSettings.parse(merged_config(additional, WispSettings(**own))["wisp"]) == settings


def test_a_workload_survives_its_file(tmp_path):
    workload = standard_workload(max_tokens=3)
    workload.save(tmp_path / "workload.json")
    assert Workload.load(tmp_path / "workload.json") == workload
    steps = [arrival.step for arrival in workload.arrivals]
    assert steps == sorted(steps)
    assert steps[0] == 0
    assert steps[-1] == WHEN_IDLE


def test_a_request_survives_its_file(tmp_path):
    request = ArmRequest("model", {"expert_slots": 4}, "workload", "result", ("--seed", "7"), layerwise=True)
    (tmp_path / "request.json").write_text(json.dumps(asdict(request)))
    assert ArmRequest.load(tmp_path / "request.json") == request


def test_no_prompt_is_refused():
    with pytest.raises(ConfigError, match="prompt"):
        standard_workload([])


def test_the_user_s_flags_win():
    flags = engine_flags(("--max-num-seqs", "2", "--seed=7"))
    assert flags.count("--max-num-seqs") == 1
    assert "--seed" not in flags
    assert "--max-num-batched-tokens" in flags
    assert engine_flags(())[::2] == tuple(ENGINE_FLAGS)


@pytest.fixture
def verify(run_script):
    """`wisp verify demo/model ...`, whose engines import nothing anew: its exit code, and what it prints."""

    def verify(*arguments):
        ended = run_script("run_verify.py", MODEL, "--enforce-eager", *arguments, **EAGER)
        return ended["code"], ended["out"]

    return verify


@pytest.mark.engine
def test_broken_on_purpose_exits_with_1(verify):
    code, out = verify("--slots", "8", "--break", "--max-tokens", "4")
    assert code == 1, out
    assert "DIFFERENT" in out


@pytest.mark.engine
@pytest.mark.slow
def test_layers_equal_themselves_with_all_experts(verify):
    code, out = verify("--slots", "6", "--layerwise", "--max-tokens", "4")
    assert code == 0, out
    assert out.count("identical") == 1 + 6  # a column's name, and six layers


@pytest.mark.engine
def test_concurrent_clients_get_what_the_unpaged_engine_answers():
    """As a user runs it: every process is started anew."""
    command = [sys.executable, "-m", "wisp.cli.main", "verify", str(MODEL), "--enforce-eager", "--slots", "8"]
    command += ["--clients", "8", "--max-tokens", "8"]
    environment = {**os.environ, **EAGER}
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16/16" in done.stdout


@pytest.mark.engine
def test_what_an_engine_refuses_exits_with_2(verify):
    code, out = verify("--slots", "8", "--layerwise", "--load-format", "tensorizer")  # starts no unpaged engine before
    assert code == 2
    assert "--load-format tensorizer bypasses host memory" in out
