"""The engines of the check, in a process of their own: `record` writes traces, `measure` times decode steps.

    python engines.py record FOLDER | measure FOLDER

FOLDER holds request.json (see run.py); the answer is written there.
"""

import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

BLOCK_TOKENS = 32


def start(request: dict[str, Any], wisp: dict[str, Any], **more: Any) -> Any:
    """An engine in this process."""
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    args = EngineArgs(
        model=request["model"],
        max_model_len=request["longest"],
        max_num_batched_tokens=request["longest"],
        max_num_seqs=1,
        block_size=BLOCK_TOKENS,
        kv_cache_memory_bytes=request["kv_bytes"],
        enable_prefix_caching=False,
        additional_config={"wisp": wisp},
        seed=0,
        **more,
    )
    return LLMEngine.from_engine_args(args)


def stop(engine: Any) -> None:
    """Give back what it took."""
    engine.engine_core.shutdown()
    gc.unfreeze()  # vLLM hides from the collector what it has started with
    gc.collect()


def prompt_of(engine: Any, text: str, filler: str, tokens: int) -> list[int]:
    """The chat prompt of this text, behind as much filler as makes it `tokens` long; as it is if it is longer."""
    tokenizer = engine.get_tokenizer()
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    ids = list(tokenizer.encode(chat, add_special_tokens=False))
    before: list[int] = list(tokenizer.encode(filler, add_special_tokens=False))
    missing = max(0, tokens - len(ids))
    return (before * (missing // len(before) + 1))[:missing] + ids


def answer(engine: Any, prompt: list[int], tokens: int) -> list[float]:
    """The seconds between one token and the next."""
    from vllm import SamplingParams

    sampling = engine.vllm_config.model_config.get_diff_sampling_param()  # what a server uses by default
    params = SamplingParams(**{**sampling, "max_tokens": tokens}, ignore_eos=True, detokenize=False)
    engine.add_request("0", {"prompt_token_ids": prompt}, params)
    seconds, produced, last = [], 0, time.perf_counter()
    while engine.has_unfinished_requests():
        outputs = engine.step()
        if outputs and len(outputs[0].outputs[0].token_ids) > produced:
            now = time.perf_counter()
            if produced:
                seconds.append(now - last)
            produced, last = len(outputs[0].outputs[0].token_ids), now
    return seconds


def faults_of(engine: Any) -> float:
    """Counted so far, all layers together."""
    from wisp.engines.vllm.local_engine import counters_of

    counters = counters_of(engine)
    assert counters is not None, "it is paged"
    return counters["faults"]


def record(folder: Path, request: dict[str, Any]) -> None:
    """One trace for each case, with every expert resident; where the host decides, so that plans are seen."""
    from wisp.engines.vllm.recording.engine_recorder import EngineRecorder

    engine = start(
        request,
        {"expert_slots": request["num_experts"], "decide": "host"},
        enforce_eager=True,
        async_scheduling=False,
    )
    prompts = {}
    for case in request["cases"]:
        prompts[case["name"]] = prompt_of(engine, case["text"], case["filler"], case["context"])
        recorder = EngineRecorder(engine.engine_core.engine_core)
        answer(engine, prompts[case["name"]], request["tokens"])
        recording = recorder.take(last=True)
        recorder.stop()
        assert recording is not None, "an answer has steps"
        recording.save(folder / f"{case['name']}.npz")
    (folder / "prompts.json").write_text(json.dumps(prompts))
    stop(engine)


def measure(folder: Path, request: dict[str, Any]) -> None:
    """For each number of slots an engine as it is served by default, answering every case."""
    prompts = json.loads((folder / "prompts.json").read_text())
    rows = []
    for slots in request["slots"]:
        engine = start(request, {"expert_slots": slots}, **request["engine"])
        for case in request["cases"]:
            answer(engine, prompts[case["name"]], 8)  # its shapes are compiled, whatever those are
            before = faults_of(engine)
            seconds = answer(engine, prompts[case["name"]], request["tokens"])
            window = seconds[request["warm"] :]
            steps = len(seconds) + 1
            row = {"slots": slots, "case": case["name"], "step_s": statistics.fmean(window)}
            row |= {"step_median_s": statistics.median(window), "steps": len(window)}
            rows.append({**row, "faults_a_step_with_prefill": (faults_of(engine) - before) / steps})
            print(json.dumps(rows[-1]), flush=True)
        stop(engine)
        del engine
        gc.collect()
    (folder / "rows.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    home = Path(sys.argv[2])
    {"record": record, "measure": measure}[sys.argv[1]](home, json.loads((home / "request.json").read_text()))
