"""One engine on a checkpoint: how long it loads, what memory it holds then, and how fast it decodes.

python arm.py --arm checkpoint --folder /tmp/checkpoint
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "shared"))
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_MOE_ROUTING_SIMULATION_STRATEGY"] = "wisp_trace"

import torch
from measured_engine import GIB, decode, first_token
from routing import STRATEGY, Locality, TraceRouting, generate
from together import report
from vllm import EngineArgs, SamplingParams
from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingSimulator
from vllm.model_executor.model_loader import base_loader, default_loader
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

BATCHES, STREAMS = (1, 4, 8), 8
WARM_STEPS, MEASURED_STEPS = 64, 128
COPIED_EXPERTS, COPY_REPEATS = 16, 4
ARMS = ("stock", "memory", "checkpoint")


class Timed:
    """Seconds in some functions of ours, and in the worker's loading, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def install(self) -> None:
        """Before an engine is built."""
        from wisp.pager import host_memory, mapped_file

        if current_platform.is_cpu():
            from vllm.v1.worker.cpu_worker import CPUWorker as Worker
        else:
            from vllm.v1.worker.gpu_worker import Worker
        self._wrap(Worker, "load_model", "load")
        self._wrap(base_loader, "initialize_model", "initialize")
        self._wrap(default_loader.DefaultModelLoader, "load_weights", "weights")
        self._wrap(base_loader, "process_weights_after_loading", "lay_out")
        for module, provide in ((host_memory, "provide"), (mapped_file, "read_in")):
            self._wrap(module, "lock_pages", "register")
            self._wrap(module, provide, "provide_pages")

    def _wrap(self, owner: Any, name: str, key: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                self.seconds[key] += time.perf_counter() - start

        setattr(owner, name, timed)


def host_memory_gib() -> dict[str, float]:
    """What this process has of its own, and what it maps of files, which other processes share."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {kind: int(lines[name].split()[0]) / 2**20 for kind, name in (("private", "RssAnon"), ("files", "RssFile"))}


def engine_of(options: argparse.Namespace) -> LLMEngine:
    """With CUDA graphs, except for the arm that is there for its loading alone."""
    additional = {"wisp": {"expert_slots": options.slots, "backing_store": options.arm}}
    if current_platform.is_cpu():
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(options.folder),
            skip_tokenizer_init=True,
            max_model_len=options.prompt + 512,
            max_num_batched_tokens=options.prompt,
            max_num_seqs=STREAMS,
            kv_cache_memory_bytes=1 << 30,
            gpu_memory_utilization=0.05,  # checked at the start, and else without effect: others may have taken theirs
            enable_prefix_caching=False,
            compilation_config={"cudagraph_capture_sizes": [1, 2, 4, 8]},
            enforce_eager=options.arm == "stock" or current_platform.is_cpu(),
            additional_config={} if options.arm == "stock" else additional,
        )
    )


def tokens_of(engine: LLMEngine) -> list[int]:
    """What a fixed prompt is answered with: the same whatever the store, since the routing is replayed."""
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False)
    engine.add_request("sample", {"prompt_token_ids": [7] * 16}, params)
    output = None
    while engine.has_unfinished_requests():
        output = (engine.step() or [output])[-1]
    return list(output.outputs[0].token_ids)


def integrity_of(engine: LLMEngine) -> dict[str, int]:
    """How many residents were compared with the store, and how many differed."""
    from wisp.engines.vllm import integrity, workers

    worker = workers.of_engine(engine.vllm_config)
    assert worker is not None
    found = integrity.check(list(integrity.paged_tables(worker)))
    return {"residents": found.residents, "wrong": found.wrong}


def copies_of(engine: LLMEngine) -> dict[str, Any]:
    """GB/s of the kernel that copies experts in pieces, by layer, with where its pieces begin; of one process alone."""
    from wisp.engines.vllm import workers

    worker = workers.of_engine(engine.vllm_config)
    paging = None if worker is None else worker.in_graph
    if paging is None or paging.arena.reaches(paging.pagers[0].store):
        return {}
    experts = torch.arange(COPIED_EXPERTS, device="cuda")
    rows = torch.arange(COPIED_EXPERTS, device="cuda")  # the staging area's, and slots that are not needed any more
    found = []
    for pager in paging.pagers[:4]:
        best = float("inf")
        for _ in range(COPY_REPEATS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            pager.copy(experts, rows)
            end.record()
            end.synchronize()
            best = min(best, start.elapsed_time(end) / 1e3)
        begins = int(pager.store.addresses()[0, 0])
        rate = COPIED_EXPERTS * pager.store.expert_bytes / best / 1e9
        found.append({"begins_mod_16": begins % 16, "begins_mod_128": begins % 128, "kernel_gb_s": rate})
    return {
        "copies": found,
        "copy_engine_gb_s": paging.arena.link_bytes_per_second(paging.pagers[0].store) / 1e9,
    }


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", choices=ARMS, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=MEASURED_STEPS)
    options = parser.parse_args()
    config = json.loads((options.folder / "config.json").read_text())
    shape = config["num_hidden_layers"], STREAMS, config["num_experts"], config["num_experts_per_tok"]
    RoutingSimulator.register_strategy(STRATEGY, TraceRouting(generate(256, *shape, Locality())))
    timed = Timed()
    timed.install()
    free_before = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
    engine = engine_of(options)
    found: dict[str, Any] = {"seconds": dict(timed.seconds), "host_gib": host_memory_gib()}
    if options.arm != "stock":
        found["tokens"] = tokens_of(engine)
        warm = min(WARM_STEPS, options.steps)
        found["decode"] = {
            batch: decode(engine, batch, warm_steps=warm, measured_steps=options.steps) for batch in BATCHES
        }
        found["ttft_s"] = statistics.median(first_token(engine, options.prompt))
        found["integrity"] = integrity_of(engine)
        if torch.cuda.is_available():
            found["gpu_gib"] = (free_before - torch.cuda.mem_get_info()[0]) / GIB
            found |= copies_of(engine)
    report(found)


if __name__ == "__main__":
    main()
