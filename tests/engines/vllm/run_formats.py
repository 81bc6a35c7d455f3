"""Loads tiny quantised checkpoints through vLLM, paged and unpaged, and compares a layer of the two.

    python run_formats.py FORMAT:BACKEND,... RESULTS.json

The device decides, which here is the CPU. vLLM's Triton kernels run in Triton's interpreter; Marlin has a stand-in.
"""

# the checkpoints are in no package
import dataclasses
import json
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "formats"))

import checkpoints
import quantisations
import stand_ins  # prepares Triton
import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.quantization.auto_awq import AutoAWQConfig
from vllm.model_executor.layers.quantization.inc.schemes import inc_wna16_scheme
from vllm.model_executor.model_loader import get_model
from vllm.v1.worker.workspace import init_workspace_manager

from wisp.engines.vllm import formats
from wisp.engines.vllm.kernels.layer_kernels import LayerKernels
from wisp.engines.vllm.layer import PagedRoutedExperts
from wisp.engines.vllm.loading import memory_loading
from wisp.engines.vllm.paging import WorkerPaging
from wisp.engines.vllm.settings import WispSettings
from wisp.engines.vllm.verify.layerwise import LayerRecorder
from wisp.errors import UnsupportedError

STEPS, GRAPH_TOKENS = (1, 5, 1, 9), 6
"""Tokens a step; the last is wider than what a graph would hold."""
SLOTS = (3, 15, 16)
"""Fewer than the four experts that a token needs, all but one, and all, where nothing is paged."""
GROWN_FROM, GROWN_TO = 3, (8, 16)
"""Slots made anew in a loaded engine, as where a budget is divided; with Marlin's stand-in only."""
INTERPRETED_STEPS, INTERPRETED_GRAPH_TOKENS, INTERPRETED_SLOTS = (1, 3), 2, (3,)
"""The same for Triton's kernels, which take seconds a step in the interpreter."""

DTYPES = {"marlin": "bfloat16", "triton": "float16"}
"""Of activations. Triton's interpreter multiplies bfloat16 as if its bits were whole numbers, beside which a scale or a
bias is little."""


def main(cases: str, results: str) -> None:
    """Compare what is asked for."""
    stand_ins.install()
    WispSettings.decides_on_device = lambda *_: True
    WispSettings.check_model = lambda *_, **__: None  # what it says of a CPU's kernels does not hold here
    memory_loading.check_store = lambda *_, **__: None  # nothing is page-locked on a CPU, and nothing has to be
    # on a CPU vLLM would take AWQ for something else
    AutoAWQConfig.override_quantization_method = classmethod(
        lambda cls, found, *_, **__: cls.get_name() if found["quant_method"] == "awq" else None
    )
    # nor has it a method for experts of AutoRound there
    inc_wna16_scheme.current_platform = SimpleNamespace(is_cpu=lambda: False, is_cuda=lambda: True)
    init_workspace_manager(torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        found = {}
        for case in cases.split(","):
            found[case] = compared(case, Path(folder))
            Path(results).write_text(json.dumps(found))
        found["8 bits"] = {name: refusal(name, Path(folder)) for name in ("gptq_8_bits", "ct_int8")}
        Path(results).write_text(json.dumps(found))


def refusal(name: str, folder: Path) -> str:
    """What is said of a checkpoint in this format if no run has shown it; it is refused before it is read."""
    known = formats.FORMATS
    formats.FORMATS = {key: dataclasses.replace(each, shown=(), shown_8_bits=()) for key, each in known.items()}
    try:
        load(checkpoints.write(folder / f"refused_{name}", name), "marlin", {"expert_slots": SLOTS[0]})
    except UnsupportedError as error:
        return str(error)
    finally:
        formats.FORMATS = known
    return "nothing"


def load(model: Path, backend: str, settings: dict[str, object] | None, *, quantization: str | None = None):
    """vLLM's model with its weights, and its configuration."""
    config = EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=256,
        dtype=DTYPES[backend],
        moe_backend=backend,
        quantization=quantization,
        additional_config={"wisp": settings} if settings else {},
    ).create_engine_config()
    config.kernel_config.moe_backend = backend
    with set_current_vllm_config(config):
        ensure_model_parallel_initialized(1, 1)
        loaded = get_model(vllm_config=config)
    return loaded, config


def experts_of(model) -> list[RoutedExperts]:
    """The layers of routed experts, in order."""
    return [module for module in model.modules() if isinstance(module, RoutedExperts)]


def compared(case: str, folder: Path) -> dict[str, object]:
    """What `compare` finds, or what it fails with."""
    start = time.perf_counter()
    try:
        found = compare(*case.split(":"), folder)
    except Exception:
        found = {"error": traceback.format_exc()}
    return {**found, "seconds": time.perf_counter() - start}


def compare(name: str, backend: str, folder: Path) -> dict[str, object]:
    """The last layer of two, step by step, at each number of slots."""
    path = folder / name
    if not path.exists():
        checkpoints.write(path, name)
    load_it = partial(load, path, backend, quantization=quantisations.QUANTIZATION.get(name))
    unpaged, config = load_it(None)
    stock = experts_of(unpaged)[-1]
    assert not isinstance(stock, PagedRoutedExperts)
    found: dict[str, object] = {"kernel": type(stock.quant_method.moe_kernel.fused_experts).__name__, "slots": {}}
    interpreted = backend == "triton"
    LayerKernels._graph_tokens = lambda *_: INTERPRETED_GRAPH_TOKENS if interpreted else GRAPH_TOKENS
    for slots in INTERPRETED_SLOTS if interpreted else SLOTS:
        paged_model, paged_config = load_it({"expert_slots": slots, "unshown_formats": True})
        layers = experts_of(paged_model)
        assert all(isinstance(layer, PagedRoutedExperts) for layer in layers)
        recorder = LayerRecorder(layers)
        random = torch.Generator().manual_seed(1)
        step = partial(compared_step, (stock, config), (layers, paged_config), random)
        steps = [step(tokens) for tokens in (INTERPRETED_STEPS if interpreted else STEPS)]
        worker = layers[0]._worker
        worker.publish(exactly=True)
        with set_current_vllm_config(paged_config), set_forward_context(None, paged_config):
            layerwise = recorder.compare()
        found["slots"][slots] = {
            "planar": worker.in_graph.arena.planar if worker.in_graph else None,
            "steps": steps,
            "layerwise": [(each.calls, each.identical) for each in layerwise],
            "faults": worker.in_graph.pagers[-1].totals()["faults"] if worker.in_graph else 0,
            "tensors": sorted(layers[-1].expert_tensors.tensors),
        }
        if slots == GROWN_FROM and not interpreted:
            found["grown"] = [grow(worker, more) | step(STEPS[-1]) for more in GROWN_TO]
    return found


def compared_step(unpaged, paged, random, tokens: int) -> dict[str, object]:
    """One step of so many tokens; `unpaged` and `paged` are layers and the configuration that they run under."""
    (stock, config), (layers, paged_config) = unpaged, paged
    x = torch.randn(tokens, checkpoints.HIDDEN, generator=random).to(config.model_config.dtype)
    weights = torch.rand(tokens, checkpoints.TOP_K, generator=random)
    ids = torch.rand(tokens, checkpoints.EXPERTS, generator=random).topk(checkpoints.TOP_K).indices.int()
    with set_current_vllm_config(config), set_forward_context(None, config):
        expected = stock.forward_modular(x, weights, ids).clone()
    with set_current_vllm_config(paged_config), set_forward_context(None, paged_config):
        outputs = [layer.forward_paged(x, weights, ids).clone() for layer in layers]
    return {
        "tokens": tokens,
        "identical": torch.equal(outputs[-1], expected),
        "finite": bool(expected.isfinite().all()),
        "layers_differ": not torch.equal(outputs[0], outputs[1]),
    }


def grow(worker: WorkerPaging, slots: int) -> dict[str, object]:
    """As a start does once it has measured."""
    before = worker.in_graph
    worker.make_slots(slots)
    return {"slots": slots, "in_place": worker.in_graph is before, "paged": worker.in_graph is not None}


if __name__ == "__main__":
    main(*sys.argv[1:])
