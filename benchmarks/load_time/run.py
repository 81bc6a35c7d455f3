"""Loading a checkpoint under paging, beside stock vLLM and beside reading the files alone.

python benchmarks/load_time/run.py [--layers 8] [--folder /tmp/checkpoint]

Writes a checkpoint of random bf16 weights (about 1.2 GiB a layer of Qwen3-30B-A3B), reads it once so that it is in the
page cache, and then measures each arm in a process of its own.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
SHAPES = HERE.parent / "iso_vram" / "qwen3-30b-a3b" / "config.json"
GIB = 2**30
CHUNK_BYTES = 16 << 20
TIMEOUT_SECONDS = 240


def write(folder: Path, layers: int, tiny: bool) -> None:
    """One file a layer, one for the rest; `tiny` is for trying the script out."""
    config = json.loads(SHAPES.read_text()) | {"num_hidden_layers": layers}
    if tiny:
        config |= {"hidden_size": 256, "moe_intermediate_size": 64, "num_experts": 16, "vocab_size": 512}
        config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    query, key = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    vocabulary = (config["vocab_size"], hidden)
    rest = {"model.embed_tokens.weight": vocabulary, "lm_head.weight": vocabulary, "model.norm.weight": (hidden,)}
    save_file({name: _weights(*shape) for name, shape in rest.items()}, folder / "rest.safetensors")
    for layer in range(layers):
        shapes: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (query, hidden),
            "self_attn.k_proj": (key, hidden),
            "self_attn.v_proj": (key, hidden),
            "self_attn.o_proj": (hidden, query),
            "self_attn.q_norm": (config["head_dim"],),
            "self_attn.k_norm": (config["head_dim"],),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "mlp.gate": (config["num_experts"], hidden),
        }
        for expert in range(config["num_experts"]):
            shapes[f"mlp.experts.{expert}.gate_proj"] = (width, hidden)
            shapes[f"mlp.experts.{expert}.up_proj"] = (width, hidden)
            shapes[f"mlp.experts.{expert}.down_proj"] = (hidden, width)
        tensors = {f"model.layers.{layer}.{name}.weight": _weights(*shape) for name, shape in shapes.items()}
        save_file(tensors, folder / f"layer-{layer:02}.safetensors")


def _weights(*shape: int) -> torch.Tensor:
    """Numbers of magnitude 2^-8 with random signs and mantissas: drawn faster than normal ones."""
    bits = torch.randint(-(2**15), 2**15, shape, dtype=torch.int16)
    return (bits & -0x7F81 | 0x3B80).view(torch.bfloat16)


def read_seconds(folder: Path) -> float:
    """Read every file into memory that is thrown away, one after the other."""
    buffer = bytearray(CHUNK_BYTES)
    start = time.perf_counter()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - start


def load_seconds(folder: Path, expert_slots: int | None) -> float:
    """What the worker's `load_model` takes: reading, placing, repacking, slots."""
    from vllm import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.llm_engine import LLMEngine

    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_worker import CPUWorker as Worker
    else:
        from vllm.v1.worker.gpu_worker import Worker
    original, seconds = Worker.load_model, []

    def load_model(*args: object, **kwargs: object) -> None:
        start = time.perf_counter()
        original(*args, **kwargs)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)

    Worker.load_model = load_model
    LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder),
            skip_tokenizer_init=True,
            max_model_len=512,
            max_num_batched_tokens=512,
            kv_cache_memory_bytes=1 << 28,
            enforce_eager=True,
            additional_config={"wisp": {"expert_slots": expert_slots}} if expert_slots else {},
        )
    )
    return seconds[0]


def main() -> None:
    """Write, read, load, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--folder", type=Path, help="for the checkpoint; the default is removed at the end")
    parser.add_argument("--tiny", action="store_true", help="small layers, to try the script out")
    parser.add_argument("--arm", choices=["stock", "wisp"], help="only this one, on the checkpoint in --folder")
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    if options.arm:
        print(load_seconds(options.folder, options.slots if options.arm == "wisp" else None))
        return
    import vllm

    folder = options.folder or Path(tempfile.mkdtemp(prefix="checkpoint-"))
    try:
        write(folder, options.layers, options.tiny)
        gib = sum(path.stat().st_size for path in folder.glob("*.safetensors")) / GIB
        read_seconds(folder)
        seconds = {"read": read_seconds(folder)}
        for arm in ("stock", "wisp"):
            command = [sys.executable, __file__, "--arm", arm, "--folder", str(folder), "--slots", str(options.slots)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
            if done.returncode != 0:
                sys.exit(f"{arm} ended with {done.returncode}:\n{done.stderr[-3000:]}")
            seconds[arm] = float(done.stdout.splitlines()[-1])
        result = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{_device()}, {platform.machine()}",
            "versions": {"vllm": vllm.__version__, "torch": torch.__version__},
            "checkpoint_gib": round(gib, 2),
            "expert_slots": options.slots,
            "seconds": {arm: round(value, 2) for arm, value in seconds.items()},
            "wisp_over_read": round(seconds["wisp"] / seconds["read"], 2),
            "wisp_over_stock": round(seconds["wisp"] / seconds["stock"], 2),
        }
        print(json.dumps(result))
        options.output.write_text(json.dumps(result, indent=2) + "\n")
    finally:
        if options.folder is None:
            shutil.rmtree(folder)


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


if __name__ == "__main__":
    main()
