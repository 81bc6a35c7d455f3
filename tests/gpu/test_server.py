"""On a GPU, a real server with a budget to divide: it says its plan, keeps within it, answers, counts, and is gone."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest
import torch

MODEL = {"hidden_size": 1024, "moe_intermediate_size": 512, "num_experts": 64, "num_hidden_layers": 8}
"""Experts of 1.5 GiB."""
BUDGET_MIB = 2048
START_SECONDS, END_SECONDS = 300, 60
MOST_LEFT_BYTES = 64 << 20


@pytest.fixture
def server(checkpoint, tmp_path):
    """Its process, address and log, once it answers."""
    model, log = checkpoint(initializer_range=0.05, **MODEL), tmp_path / "log"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ("--gpu-memory", f"{BUDGET_MIB}MiB", "--max-model-len", "1024", "--max-num-seqs", "4")
    words += ("--max-num-batched-tokens", "512", "--served-model-name", "tiny", "--host", "127.0.0.1")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "wisp.cli.main", "serve", str(model), *words, "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(tmp_path), "VLLM_LOGGING_LEVEL": "INFO"},
            start_new_session=True,
        )
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
    try:
        while not is_ready(url):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.5)
        yield process, url, log
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def is_ready(url):
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def free_before():
    """Bytes of the GPU, this process's context already there."""
    torch.cuda.init()
    return torch.cuda.mem_get_info()[0]


@pytest.mark.timeout(600)
def test_a_budget_is_planned_kept_to_and_given_back(free_before, server):
    process, url, log = server
    plan = re.search(rf"plan of gpu_memory {BUDGET_MIB}MiB: (\d+) of 64 expert slots", log.read_text())
    assert plan, log.read_text()[-4000:]
    slots = int(plan[1])
    assert 4 < slots < 64, "more than it was loaded with, and not all"

    request = {"model": "tiny", "prompt": "w5 w6 w7 w8", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    answers = [httpx.post(f"{url}/v1/completions", json=request, timeout=60).json() for _ in range(2)]
    assert answers[0]["usage"]["completion_tokens"] == 20
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]
    assert 0 < free_before - torch.cuda.mem_get_info()[0] <= BUDGET_MIB << 20

    told = subprocess.run(
        [sys.executable, "-m", "wisp.cli.main", "stats", url, "--json"], capture_output=True, text=True, check=True
    )
    pool = json.loads(told.stdout)
    assert pool["pool"]["expert_slots"] == slots
    assert pool["total"]["faults"] > 0

    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=END_SECONDS) == 0
    deadline = time.monotonic() + END_SECONDS
    while free_before - torch.cuda.mem_get_info()[0] > MOST_LEFT_BYTES and time.monotonic() < deadline:
        time.sleep(0.5)
    assert free_before - torch.cuda.mem_get_info()[0] <= MOST_LEFT_BYTES
