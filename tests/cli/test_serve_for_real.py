"""One real server: vLLM's own, on a tiny model, with the OpenAI client, `wisp stats` and a clean end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest
from workload import EAGER

from wisp.engines.vllm.protocol import HEADER, RECORDINGS
from wisp.kv_trace import KvEvent
from wisp.recording import Recording

START_SECONDS = 400
END_SECONDS = 10
FLAGS = ("--enforce-eager", "--max-model-len", "256", "--max-num-seqs=4", "--num-gpu-blocks-override", "64")

IN_THE_CORE = ("--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor")
"""The worker shares its process and its configuration with the engine's core, as it does on one GPU."""

ANSWER_TOKENS = 140
"""Of a recorded answer: more than a block has, 128 as vLLM has it on a CPU."""

pytestmark = pytest.mark.engine


@pytest.fixture
def command(checkpoint, tmp_path):
    """Starts `wisp WORDS...` in a session of its own; its processes and its files can be counted."""
    pytest.importorskip("vllm")
    environment = (
        os.environ | EAGER | {"VLLM_CPU_KVCACHE_SPACE": "1", "TMPDIR": str(tmp_path), "VLLM_SERVER_DEV_MODE": "1"}
    )
    running = []

    def start(*words):
        log = (tmp_path / "log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "wisp.cli.main", *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        log.close()
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()


def processes_of_session(session):
    listed = subprocess.run(["ps", "-e", "-o", "sid=,pid=,stat=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(maxsplit=3) for line in listed.stdout.splitlines()]
    return [row for row in rows if row[0] == str(session) and not row[2].startswith("Z")]


def assert_all_end(session):
    """Python's tracker of shared memory ends when it has seen that all others have."""
    deadline = time.monotonic() + END_SECONDS
    while (left := processes_of_session(session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def wait_until_ready(url, process, log):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    pytest.fail(log.read_text()[-3000:])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "worker",
    [pytest.param((), id="worker apart", marks=pytest.mark.slow), pytest.param(IN_THE_CORE, id="worker in the core")],
)
def test_a_server_answers_counts_and_leaves_nothing_behind(command, checkpoint, tmp_path, worker):
    from openai import OpenAI

    model, port = checkpoint(), free_port()
    url = f"http://127.0.0.1:{port}"
    user_config = json.dumps({"of_the_user": 1})
    process = command(
        *("serve", str(model), "--expert-slots", "6", "--policy=lfru", "--host", "127.0.0.1", "--port", str(port)),
        *("--served-model-name", "tiny", "--recordable", "--measure", "--additional-config", user_config, *FLAGS),
        *("--worker-extension-cls", "wisp.engines.vllm.integrity.IntegrityExtension", *worker),
    )
    wait_until_ready(url, process, tmp_path / "log")
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        reply = client.completions.create(
            model="tiny", prompt="w5 w6 w7 w8", max_tokens=20, temperature=0, extra_body={"ignore_eos": True}
        )
    assert reply.usage.completion_tokens == 20
    assert (
        "'wisp': {'expert_slots': 6, 'policy': 'lfru', 'recordable': True, 'measure': True}"
        in (tmp_path / "log").read_text()
    )
    assert "of_the_user" in (tmp_path / "log").read_text()

    metrics = httpx.get(f"{url}/metrics").text
    exported = [line for line in metrics.splitlines() if line.startswith("wisp_expert_faults_total")]
    told = json.loads(stats(url, "--json"))
    assert len(exported) == len(told["layers"]) == told["pool"]["layers"] == 3
    assert sum(float(line.split()[-1]) for line in exported) == told["total"]["faults"] > 0
    assert told["total"]["bytes_moved"] == told["total"]["faults"] * told["pool"]["expert_bytes"]
    assert told["total"]["evictions"] == told["total"]["faults"] - 3 * 6
    assert (told["pool"]["expert_slots"], told["pool"]["experts"]) == (6, 16)
    assert told["total"]["steps"] >= 3 * 20
    assert "vllm:generation_tokens_total" in metrics

    check_recording(url, told)
    check_curves(url)
    check_slots(url)
    counters = tmp_path / f"wisp-{os.getuid()}"
    assert len(list(counters.glob("*.counters"))) == 1
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 0
    assert_all_end(process.pid)
    assert list(counters.iterdir()) == []


def stats(*words):
    command = [sys.executable, "-m", "wisp.cli.main", "stats", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def check_curves(url):
    """The meters have counted since the server began, and go on after a recording."""
    curves = json.loads(stats(url, "--curves", "--json"))["curves"]
    assert (curves["experts"]["layers"], curves["experts"]["expert_slots"]) == (3, 6)
    misses = curves["experts"]["misses_a_step"]
    assert misses[0] >= 3 * 4  # top-4
    assert misses == sorted(misses, reverse=True)
    assert curves["kv"]["pool_blocks"] == 64
    assert 0 < curves["kv"]["references_a_step"] < 1
    shown = stats(url, "--curves")
    assert "3 layers together" in shown
    assert "by KV blocks of" in shown


def check_slots(url):
    """The worker finds its layers, and every slot holds its expert."""
    answer = httpx.post(f"{url}/collective_rpc", json={"method": "wisp_check_integrity"}, timeout=60)
    (found,) = answer.json()["results"]
    assert (found["layers"], found["residents"], found["wrong"]) == (3, 3 * 6, 0)


def check_recording(url, before):
    """What is recorded of an answer is all that the layers were asked for in the meantime."""
    ticket = httpx.post(url + RECORDINGS).json()["ticket"]
    words = {
        "model": "tiny",
        "prompt": "w5",
        "max_tokens": ANSWER_TOKENS,
        "ignore_eos": True,
    }  # of no more experts than slots
    reply = httpx.post(f"{url}/v1/completions", json=words, timeout=60).json()
    finished = httpx.post(f"{url}{RECORDINGS}/{ticket}/finish")
    said = json.loads(finished.headers[HEADER])
    assert said["ended"] is None
    assert 0 < said["seconds"] < 1
    recording = Recording.from_bytes(finished.content, "the server")
    prompt_tokens = reply["usage"]["prompt_tokens"]
    assert recording.routing.steps == ANSWER_TOKENS
    assert recording.routing.tokens.tolist() == [prompt_tokens] + (ANSWER_TOKENS - 1) * [1]
    assert recording.prefill_tokens.tolist() == [prompt_tokens] + (ANSWER_TOKENS - 1) * [0]
    assert recording.expert_bytes == before["pool"]["expert_bytes"]
    assert recording.kv.count(KvEvent.INSERT) == (prompt_tokens + ANSWER_TOKENS - 1) // recording.kv.block_tokens > 0
    asked = json.loads(stats(url, "--json"))["total"]["references"] - before["total"]["references"]
    assert recording.routing.widths().sum() == asked > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_engine_that_cannot_start_ends_with_its_reason(command, checkpoint, tmp_path):
    """Checked in a worker: the front end does not know the size of a layer's experts."""
    model = checkpoint("qwen3_moe")
    folder = tmp_path / "huge"
    folder.mkdir()
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    layers = 100_000
    config |= {"num_hidden_layers": layers, "moe_intermediate_size": 512, "layer_types": None}
    (folder / "config.json").write_text(json.dumps(config))
    process = command("serve", str(folder), "--expert-slots", "4", "--load-format", "dummy", *FLAGS)
    assert process.wait(timeout=START_SECONDS) == 2
    last_words = (tmp_path / "log").read_text().strip().splitlines()
    told = [line for line in last_words if line.startswith("wisp: ")]
    assert len(told) == 1
    assert "of host memory" in told[0]
    assert_all_end(process.pid)
    assert list((tmp_path / f"wisp-{os.getuid()}").iterdir()) == []
