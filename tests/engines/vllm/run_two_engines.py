"""Runs two paged engines side by side in one process, and tries what a server has to live through.

python run_two_engines.py MODEL RESULTS.json
"""

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import torch
from vllm import LLM, SamplingParams

from wisp.engines.vllm import workers
from wisp.engines.vllm.counters import counter_files
from wisp.errors import WispError
from wisp.pager.counters import Counters

WEIGHT = "model.layers.0.mlp.experts.0.gate_proj.weight"
PROMPTS = [[5, 6, 7, 8], [9] * 30, list(range(100, 180))]


def main(model: str, results: str) -> None:
    """The first engine is used before, beside and after the second."""
    first = start(model, {"wisp": {"expert_slots": 5}, "another": {"key": [1, 2]}})
    outcome: dict[str, Any] = {"alone": generate(first)}
    before = steps(first)
    second = start(model, {"wisp": {"expert_slots": 9, "policy": "fifo"}})
    outcome["steps"] = {"before": before, "after the other's start": steps(first), "of the other": steps(second)}
    outcome["together"] = [generate(second), generate(first)]
    outcome["aborted"] = abort_one(first)
    outcome["after an abort"] = generate(first)
    outcome["workers"] = [workers.count()]
    second.llm_engine.engine_core.shutdown()
    del second
    gc.unfreeze()  # vLLM hides from the collector what it has started with
    gc.collect()
    outcome["workers"].append(workers.count())
    outcome["reload"] = reload_weights(first, lambda runner: runner.reload_weights())
    outcome["load"] = reload_weights(first, lambda runner: runner.model.load_weights([(WEIGHT, torch.zeros(32, 64))]))
    outcome["process"] = os.getpid()
    Path(results).write_text(json.dumps(outcome))


def start(model: str, additional_config: dict[str, Any]) -> LLM:
    """A small engine."""
    return LLM(
        model,
        additional_config=additional_config,
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=256,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        num_gpu_blocks_override=64,
        enforce_eager=True,
    )


def generate(llm: LLM) -> list[list[int]]:
    """The same requests every time."""
    sampling = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
    llm.reset_prefix_cache()
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, sampling, use_tqdm=False)]


def steps(llm: LLM) -> float:
    """What another process would read."""
    (path,) = counter_files.of_engine(llm.llm_engine.vllm_config.instance_id)
    return Counters.open(path).total()["steps"]


def abort_one(llm: LLM) -> list[list[int]]:
    """Drop the longest prompt in the middle of its chunks; returns what the others said."""
    sampling = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False)
    engine = llm.llm_engine
    llm.reset_prefix_cache()
    engine.add_request("long", {"prompt_token_ids": [11] * 200}, sampling)
    for number, ids in enumerate(PROMPTS):
        engine.add_request(str(number), {"prompt_token_ids": ids}, sampling)
    finished = engine.step()
    engine.abort_request(["long"])
    while engine.has_unfinished_requests():
        finished += engine.step()
    tokens = {output.request_id: list(output.outputs[0].token_ids) for output in finished if output.finished}
    return [tokens[str(number)] for number in range(len(PROMPTS))]


def reload_weights(llm: LLM, reload: Callable[[Any], object]) -> str:
    """Ask for what paged layers cannot do, past the worker, who refuses it."""
    try:
        llm.collective_rpc(lambda worker: reload(worker.model_runner))
    except WispError as error:
        return f"{type(error).__name__}: {error}"
    return "reloaded"


if __name__ == "__main__":
    main(*sys.argv[1:])
