"""One engine under one memory budget, or several: prints what was measured as the last line, as JSON.

python arm.py --arm wisp --budget-gib 32
"""

import argparse
import json
import os
import statistics as stats
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "shared"))
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_MOE_ROUTING_SIMULATION_STRATEGY"] = "wisp_trace"

import dummy_weights
import torch
from measured_engine import GIB, decode, first_token, host_peak_gib, link_rate
from prefill_profile import prefill_profile
from routing import STRATEGY, Locality, TraceRouting, describe, generate
from together import report, wait_for_turn
from vllm import EngineArgs
from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingSimulator
from vllm.model_executor.model_loader import dummy_loader
from vllm.v1.engine.llm_engine import LLMEngine

from wisp.engines.vllm import workers

LAYERS, EXPERTS, TOP_K, EXPERT_BYTES = 48, 128, 8, 3 * 2048 * 768 * 2
SLOT_GIB = LAYERS * EXPERT_BYTES / GIB
KV_BYTES_PER_TOKEN = 2 * 48 * 4 * 128 * 2
FIXED_GIB = 3.1 + 1.9
"""Weights that are not experts, and what CUDA, workspaces and graphs take."""
STREAMS = 8
WARM_STEPS, MEASURED_STEPS = 64, 128
WARM_AND_MEASURED_STEPS = {"vllm-uva": (4, 48), "vllm-prefetch": (2, 12)}
"""Stock vLLM's offloading remembers nothing from step to step, so that it needs no more; and prefetching copies the
same bytes in every step."""


def expert_gib(options: argparse.Namespace) -> float:
    """What the budget leaves for experts."""
    return options.budget_gib - FIXED_GIB - options.kv_tokens * KV_BYTES_PER_TOKEN / GIB


def prefetch_groups(room: float) -> tuple[int, int]:
    """Layers of a group, and how many of them stay in host memory: as few as the room in GiB allows, spread evenly."""
    buffer = 1
    offloaded = LAYERS - int(room / (SLOT_GIB * EXPERTS / LAYERS)) + buffer
    divisors = [size for size in range(1, LAYERS + 1) if LAYERS % size == 0]
    choices = [(size, -(-offloaded * size // LAYERS)) for size in divisors]
    return min(choices, key=lambda choice: (choice[1] / choice[0], choice[0]))


def engine_args(options: argparse.Namespace) -> tuple[EngineArgs, int]:
    """The engine's arguments, and the experts a layer that are resident."""
    room = expert_gib(options)
    args = EngineArgs(
        model=str(Path(__file__).parent / "qwen3-30b-a3b"),
        skip_tokenizer_init=True,
        load_format="dummy",
        max_model_len=options.max_tokens + 512,
        max_num_batched_tokens=options.max_tokens,
        max_num_seqs=STREAMS,
        kv_cache_memory_bytes=options.kv_tokens * KV_BYTES_PER_TOKEN,
        gpu_memory_utilization=0.05,  # checked at the start, and else without effect: others may have taken theirs
        enable_prefix_caching=False,
        compilation_config={"cudagraph_capture_sizes": [1, 2, 4, 8], "mode": options.compile_mode},
        seed=0,
    )
    slots = min(EXPERTS, int(room / SLOT_GIB))
    if options.arm == "wisp":
        slots = options.slots or slots
        args.additional_config = {"wisp": {"expert_slots": slots, "host_memory": "110GiB"}}
    elif options.arm == "vllm-uva":
        args.cpu_offload_gb = max(0.0, LAYERS * EXPERTS * EXPERT_BYTES / GIB - room)
        args.cpu_offload_params = {"experts"}
    elif options.arm == "vllm-prefetch":
        args.offload_group_size, args.offload_num_in_group = prefetch_groups(room)
        args.offload_params, args.offload_prefetch_step = {"experts"}, 1
    return args, EXPERTS if options.arm == "vllm-resident" else slots


def resize(engine: LLMEngine, slots: int) -> None:
    """Another number of slots, in place: neither graphs nor residents are lost."""
    worker = workers.of_engine(engine.vllm_config)
    assert worker is not None
    assert worker.in_graph is not None
    worker.in_graph.resize(slots)


def median_round(rounds: list[dict[str, float]]) -> dict[str, float | list[float]]:
    """The round whose step is the median, and every round's step beside it."""
    middle = sorted(rounds, key=lambda found: found["step_s"])[len(rounds) // 2]
    return {**middle, "step_s_of_rounds": [found["step_s"] for found in rounds]}


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", choices=["wisp", "vllm-uva", "vllm-prefetch", "vllm-resident"], required=True)
    parser.add_argument("--budget-gib", required=True, help="several, such as 67,44: the arm wisp is resized in place")
    parser.add_argument("--slots", type=int, default=0, help="instead of what the budget allows")
    parser.add_argument("--kv-tokens", type=int, default=16384)
    parser.add_argument("--batches", default="1,4,8")
    parser.add_argument("--prompts", default="512,4096")
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--compile-mode", type=int, default=3)
    parser.add_argument("--steps", type=int, help="measured ones, after half as many; default: enough for the arm")
    parser.add_argument("--rounds", type=int, default=1, help="turns, each with all batches and prompts; an odd number")
    parser.add_argument(
        "--profile-prefill", action="store_true", help="of the last budget: where the longest prompt's time goes"
    )
    options = parser.parse_args()
    dummy_loader.initialize_single_dummy_weight = dummy_weights.fill
    trace = generate(256, LAYERS, STREAMS, EXPERTS, TOP_K, Locality())
    RoutingSimulator.register_strategy(STRATEGY, TraceRouting(trace))
    first, *others = map(float, options.budget_gib.split(","))
    options.budget_gib = first
    args, resident = engine_args(options)
    start = time.perf_counter()
    engine = LLMEngine.from_engine_args(args)
    start_seconds = time.perf_counter() - start
    wait_for_turn()
    common = {
        "kv_tokens": options.kv_tokens,
        "start_s": start_seconds,
        "link_gb_s": link_rate() / 1e9,
        "routing": describe(Locality(), trace),
    }
    reports = [{**common, **measure(engine, options, resident)}]
    for options.budget_gib in others:
        _, resident = engine_args(options)
        resize(engine, resident)
        reports.append({**common, **measure(engine, options, resident)})
    if options.profile_prefill and options.arm == "wisp":  # once all is measured: it leaves traces in what follows
        reports[-1]["prefill_profile"] = prefill_profile(engine, int(options.prompts.split(",")[-1]))
    report(reports)


def measure(engine: LLMEngine, options: argparse.Namespace, resident: int) -> dict[str, object]:
    """What one budget gives."""
    warm_steps, measured_steps = WARM_AND_MEASURED_STEPS.get(options.arm, (WARM_STEPS, MEASURED_STEPS))
    if options.steps:
        warm_steps, measured_steps = options.steps // 2, options.steps
    rounds: dict[int, list[dict[str, float]]] = defaultdict(list)
    ttft: dict[str, list[float]] = defaultdict(list)
    for number in range(options.rounds):
        if number:
            wait_for_turn()
        for batch in map(int, options.batches.split(",")):
            rounds[batch].append(decode(engine, batch, warm_steps=warm_steps, measured_steps=measured_steps))
            print(json.dumps({batch: rounds[batch][-1]}), flush=True)
        for tokens in filter(None, options.prompts.split(",")):
            ttft[tokens] += first_token(engine, int(tokens))
            print(json.dumps({tokens: ttft[tokens]}), flush=True)
    return {
        "arm": options.arm,
        "budget_gib": options.budget_gib,
        "expert_slots": resident,
        "decode": {batch: median_round(found) for batch, found in rounds.items()},
        "ttft_s": {tokens: stats.median(found) for tokens, found in ttft.items()},
        "ttft_s_of_prompts": ttft,
        "free_gpu_bytes": torch.cuda.mem_get_info()[0],
        "peak_host_gib": host_peak_gib(),
    }


if __name__ == "__main__":
    main()
