"""One engine on a GPU: with a budget to divide, or stock with a given number of KV blocks.

    python run_start_plan.py MODEL RESULT.json [KV_BLOCKS]

A process for each: vLLM gives up where memory that it did not take itself is set free while it measures.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

BUDGET_BYTES = 2 << 30
KV_BYTES = 256 << 20
"""Of the stock engine, so that it does not measure how much is free; the number of blocks is given."""
PROMPTS = ([11, 45, 97, 23, 9] * 60, [7, 8, 9], list(range(5, 90)), [300, 301] * 8)


def answers_of(llm: Any) -> list[Any]:
    """Tokens and every bit of their log-probabilities."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=48, logprobs=5, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": list(ids)} for ids in PROMPTS], sampling, use_tqdm=False)
    return [
        [
            list(output.outputs[0].token_ids),
            [[[token, entry.logprob.hex()] for token, entry in at.items()] for at in output.outputs[0].logprobs],
        ]
        for output in outputs
    ]


def run(model: str, blocks: int | None) -> dict[str, Any]:
    """One engine's answers, and what it has; with `blocks` it is the stock one."""
    from vllm import LLM

    from wisp.engines.vllm.budget import start_plan
    from wisp.engines.vllm.counters import counter_files
    from wisp.engines.vllm.workers import publish_all
    from wisp.pager.counters import Counters

    told: list[str] = []
    start_plan.logger.info = lambda text, *values: told.append(text % values)
    free_before, _ = torch.cuda.mem_get_info()
    settings = {"additional_config": {"wisp": {"gpu_memory": f"{BUDGET_BYTES >> 20}MiB", "conversations": 400}}}
    stock = {"num_gpu_blocks_override": blocks, "kv_cache_memory_bytes": KV_BYTES, "gpu_memory_utilization": 0.2}
    llm = LLM(
        model=model,
        max_model_len=1024,
        max_num_seqs=4,
        max_num_batched_tokens=512,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        seed=0,
        **(settings if blocks is None else stock),
    )
    core = llm.llm_engine.engine_core.engine_core
    result = {"answers": answers_of(llm), "kv_blocks": core.scheduler.kv_cache_config.num_blocks, "told": told}
    free_after, _ = torch.cuda.mem_get_info()
    if blocks is None:
        publish_all()
        (path,) = counter_files.of_engine(llm.llm_engine.vllm_config.instance_id)
        counters = Counters.open(path)
        result |= {"counted_slots": counters.facts.expert_slots, "faults": counters.total()["faults"]}
        result |= {"expert_slots": int(told[0].split(": ")[1].split()[0]) if told else 0}
        result |= {"taken_bytes": free_before - free_after, "budget_bytes": BUDGET_BYTES}
    llm.llm_engine.engine_core.shutdown()
    return result


def main(model: str, result: str, blocks: str | None = None) -> None:
    """Run it, and write down what it says."""
    torch.cuda.init()  # the context is there before the first look at free memory
    Path(result).write_text(json.dumps(run(model, None if blocks is None else int(blocks))))


if __name__ == "__main__":
    main(*sys.argv[1:])
