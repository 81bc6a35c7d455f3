"""One shape in one engine: prints a report as the last line, as JSON.

python arm.py olmoe-1b-7b [--slots 16] [--layers 16] [--batches 1,4,8] [--tiny]
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).parents[1] / "shared"))
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_MOE_ROUTING_SIMULATION_STRATEGY"] = "wisp_trace"

import dummy_weights
import torch
from measured_engine import GIB, decode, host_peak_gib, link_rate
from routing import STRATEGY, Locality, TraceRouting, describe, generate
from shapes import SHAPES, Shape, configuration, experts, moe_layers
from together import report as hand_over
from together import wait_for_turn
from vllm import EngineArgs
from vllm.config import CompilationMode
from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingSimulator
from vllm.model_executor.model_loader import dummy_loader
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.engine.llm_engine import LLMEngine

from wisp.errors import WispError

STREAMS = 8
WARM_STEPS, MEASURED_STEPS, MEASURED_SECONDS = 24, 64, 8.0
TOKENS_A_STEP, MODEL_TOKENS, KV_BYTES = 1024, 1024, GIB


def engine_args(folder: str, shape: Shape, options: argparse.Namespace) -> EngineArgs:
    """The engine's arguments; the KV pool is the same for all."""
    args = EngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=MODEL_TOKENS,
        max_num_batched_tokens=TOKENS_A_STEP,
        max_num_seqs=STREAMS,
        kv_cache_memory_bytes=KV_BYTES // (16 if options.tiny else 1),
        gpu_memory_utilization=0.05,  # checked at the start, and else without effect: others may have taken theirs
        enable_prefix_caching=False,
        enforce_eager=options.tiny,
        compilation_config={"cudagraph_capture_sizes": [1, 2, 4, 8]},
        additional_config={"wisp": {"expert_slots": options.slots, "host_memory": options.host_memory}},
        seed=0,
    )
    if options.compile_mode is not None:
        args.compilation_config.mode = CompilationMode(options.compile_mode)
    if options.attention_backend is not None:
        args.attention_backend = AttentionBackendEnum[options.attention_backend]
    if shape.moe_backend is not None and torch.cuda.is_available():
        args.moe_backend = shape.moe_backend
    return args


def main() -> None:
    """Run and report; what wisp refuses is a report too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("--slots", type=int)
    parser.add_argument("--layers", type=int, help="of the model's")
    parser.add_argument("--batches")
    parser.add_argument("--host-memory", default="110GiB", help="to count on: the machine's may grow as it is used")
    parser.add_argument("--compile-mode", type=int, help="0 starts soonest; vLLM's own otherwise")
    parser.add_argument("--attention-backend", help="vLLM's own otherwise")
    parser.add_argument("--tiny", action="store_true", help="two small layers, for a machine without a GPU")
    options = parser.parse_args()
    shape = SHAPES[options.model]
    options.slots = options.slots or shape.expert_slots
    config = configuration(options.model, options.layers or shape.layers, tiny=options.tiny)
    report = {
        "model": options.model,
        "format": shape.format,
        "layers": config["num_hidden_layers"],
        "moe_layers": moe_layers(config),
        "experts": experts(config),
        "top_k": config["num_experts_per_tok"],
        "expert_slots": options.slots,
        "tiny": options.tiny,
    }
    dummy_loader.initialize_single_dummy_weight = dummy_weights.fill
    locality = Locality()
    trace = generate(128, report["moe_layers"], STREAMS, report["experts"], report["top_k"], locality)
    RoutingSimulator.register_strategy(STRATEGY, TraceRouting(trace))
    with TemporaryDirectory(prefix="wisp-shape-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        start = time.perf_counter()
        try:
            engine = LLMEngine.from_engine_args(engine_args(folder, shape, options))
        except WispError as error:
            wait_for_turn()
            hand_over({**report, "refused": str(error)})
            return
        report["start_s"] = time.perf_counter() - start
        wait_for_turn()
        batches = map(int, options.batches.split(",")) if options.batches else shape.batches
        report["decode"] = {}
        for batch in batches:
            report["decode"][batch] = decode(
                engine,
                batch,
                warm_steps=WARM_STEPS,
                measured_steps=MEASURED_STEPS,
                seconds=MEASURED_SECONDS,
            )
            print(json.dumps({batch: report["decode"][batch]}), flush=True)
    report["routing"] = describe(locality, trace)
    report["peak_host_gib"] = host_peak_gib()
    if torch.cuda.is_available():
        report["free_gpu_bytes"] = torch.cuda.mem_get_info()[0]
        report["link_gb_s"] = link_rate() / 1e9
    hand_over(report)


if __name__ == "__main__":
    main()
