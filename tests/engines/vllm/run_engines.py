"""Runs vLLM engines one after another in a process of their own and writes down what tests compare.

    python run_engines.py REQUESTS.json REPLIES.json

A request: {"model", "wisp": settings or null, "args": of `vllm.LLM`, "phases": [{"prompts": [ids, ...], "sampling":
of `SamplingParams`}, ...], "calls": methods of the engine or its worker, or none}. Each phase is one `generate`, so
that a later one can hit the prefixes of an earlier one. After each call the first phase is run again.
A reply: {"error": [type, text]} of an engine that did not start, or what `_run` returns.
"""

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler and, unless TP > 1, the model live in this process
if not os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1"):
    del os.environ["VLLM_CPU_KVCACHE_SPACE"]  # empty: leave it to the engine
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

DEFAULTS = {
    "dtype": "bfloat16",
    "skip_tokenizer_init": True,
    "max_model_len": 512,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 200,
    "enforce_eager": True,
    "seed": 0,
}

SAMPLING = {"temperature": 0, "max_tokens": 8, "logprobs": 20, "ignore_eos": True, "detokenize": False}


def main(requests: str, replies: str) -> None:
    """Answer every request; the replies appear when all are there."""
    leave_imports_alone()
    answers = [answer(request) for request in json.loads(Path(requests).read_text())]
    Path(replies).write_text(json.dumps(answers))


def leave_imports_alone() -> None:
    """Hide from the garbage collector what vLLM's modules have made, which takes longer to look at than an engine.

    vLLM does so once it has started, and then hides the engine too, of which tests look for what is left.
    """
    import vllm.entrypoints.llm  # noqa: F401

    gc.collect()
    gc.freeze()
    gc.freeze = lambda: None


def start_workers(method: str) -> None:
    """Have several workers forked, as vLLM does beside GPUs, or started anew, with an import of vLLM each, as on CPUs.

    Paged ones are started anew under tensor parallelism: there a plug-in has to come into each by itself.
    """
    import multiprocessing

    from vllm.v1.executor import multiproc_executor

    multiproc_executor.get_mp_context = lambda: multiprocessing.get_context(method)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Start, run and drop one engine."""
    from vllm import LLM

    from wisp.engines.vllm.budget import start_plan

    start_workers("spawn" if request["wisp"] and "tensor_parallel_size" in request["args"] else "fork")
    told: list[str] = []
    start_plan.logger.info = lambda text, *values: told.append(text % values)  # vLLM resets handlers and levels
    settings = {"additional_config": {"wisp": request["wisp"]}} if request["wisp"] is not None else {}
    try:
        llm = LLM(model=request["model"], **{**DEFAULTS, **settings, **request["args"]})
    except Exception as error:
        return {"error": [type(error).__name__, str(error)]}
    try:
        return {**_run(llm, request), "told": told}
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def _run(llm: Any, request: dict[str, Any]) -> dict[str, Any]:
    from wisp.engines.vllm.counters.counter_files import of_engine

    core = llm.llm_engine.engine_core.engine_core
    if llm.llm_engine.vllm_config.parallel_config.pipeline_parallel_size > 1:
        llm.collective_rpc(_make_room_for_what_comes_from_the_stage_before)
    instance = llm.llm_engine.vllm_config.instance_id
    schedule, drafted = _record_schedule(core.scheduler)
    layers = _layers(core)
    plans = {layer.layer_name: _record_plans(layer) for layer in layers if hasattr(layer, "pager")}
    phases = [_generate(llm, phase) for phase in request["phases"]]
    return {
        "phases": phases,
        "calls": {name: [_error_of(llm, name), _generate(llm, request["phases"][0])] for name in request["calls"]},
        "schedule": schedule,
        "plans": plans,
        "layers": [_state(layer) for layer in layers],
        "private_bytes": _private_bytes(),
        "kv_blocks": core.scheduler.kv_cache_config.num_blocks,
        "counters": _counters(of_engine(instance)) if request["wisp"] else [],
        "drafted": drafted,
        "draft_layers": [_state(layer) for layer in _draft_layers(core)],
        "draft_counters": _counters(of_engine(instance, draft=True)) if request["wisp"] else [],
    }


def _generate(llm: Any, phase: dict[str, Any]) -> list[dict[str, Any]]:
    from vllm import SamplingParams

    sampling = SamplingParams(**{**SAMPLING, **phase["sampling"]})
    prompts = [{"prompt_token_ids": ids} for ids in phase["prompts"]]
    return [
        {
            "tokens": list(output.outputs[0].token_ids),
            "logprobs": [_exact(position) for position in output.outputs[0].logprobs],
            "cached": output.num_cached_tokens,
        }
        for output in llm.generate(prompts, sampling, use_tqdm=False)
    ]


def _error_of(llm: Any, method: str) -> list[str] | None:
    """What a call of the engine's or the worker's method raises, without arguments."""
    try:
        getattr(llm, method, lambda: llm.collective_rpc(method))()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


def _make_room_for_what_comes_from_the_stage_before(worker: Any) -> None:
    """What a warm-up does; on CPUs vLLM leaves it out with --enforce-eager, and a later stage then cannot start."""
    from vllm.distributed import get_pp_group

    runner = getattr(worker, "worker", worker).model_runner
    if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
        )


def _exact(position: dict[int, Any]) -> list[list[Any]]:
    """Logprobs of one position, every bit of them."""
    return [[token, entry.logprob.hex()] for token, entry in position.items()]


def _record_schedule(scheduler: Any) -> tuple[list[dict[str, int]], list[list[int]]]:
    """Tokens a step by request, and the ids that a draft has proposed for each."""
    steps: list[dict[str, int]] = []
    drafted: list[list[int]] = []
    numbers: dict[str, str] = {}  # request ids are random in part, so they are counted as they come
    original = scheduler.schedule

    def schedule(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        scheduled = output.num_scheduled_tokens.items()
        steps.append({numbers.setdefault(request, str(len(numbers))): tokens for request, tokens in scheduled})
        drafted.extend(output.scheduled_spec_decode_tokens.values())
        return output

    scheduler.schedule = schedule
    return steps, drafted


def _layers(core: Any) -> list[Any]:
    """The layers of routed experts, where the model lives in this process."""
    return _experts_of(_runner(core))


def _draft_layers(core: Any) -> list[Any]:
    """Those of the draft model, if there is one."""
    return _experts_of(getattr(_runner(core), "drafter", None))


def _runner(core: Any) -> Any:
    worker = getattr(core.model_executor, "driver_worker", None)
    return getattr(getattr(worker, "worker", worker), "model_runner", None)


def _experts_of(owner: Any) -> list[Any]:
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    model = getattr(owner, "model", None)
    return [] if model is None else [module for module in model.modules() if isinstance(module, RoutedExperts)]


def _record_plans(layer: Any) -> list[dict[str, Any]]:
    plans: list[dict[str, Any]] = []

    def observe(plan: Any) -> None:
        experts = sorted({expert for wave in plan.waves for expert in wave.experts})
        counts = {"faults": plan.faults, "evictions": len(plan.evictions), "waves": len(plan.waves)}
        plans.append({"experts": experts, **counts})

    layer.pager.observe = observe
    return plans


def _state(layer: Any) -> dict[str, Any]:
    """Where the experts of one layer are, and whose methods run them."""
    import torch

    method = layer.quant_method
    state = {
        "class": f"{type(layer).__module__}.{type(layer).__qualname__}",
        "parameters": {name: list(tensor.shape) for name, tensor in layer.named_parameters()},
        "buffers": {name: list(tensor.shape) for name, tensor in layer.named_buffers()},
        "own": sorted({"process_weights_after_loading", "apply"} & set(vars(method))),
        "kernel_own": sorted({"apply", "moe_sum"} & set(vars(method.moe_kernel.fused_experts))),
    }
    if not hasattr(layer, "pager"):
        return state
    pager = layer.pager
    everything = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    stores = [store for store in layer._worker.stores if store.rows is not None]  # the others are no tensors
    masters = {master.data_ptr() for store in stores for master in store.tensors.values()}
    shapes = {tuple(master.shape) for master in pager.store.tensors.values()}
    return {
        **state,
        "slots_true": all(
            torch.equal(slots[slot], pager.store.tensors[name][expert])
            for name, slots in pager.pool.tensors.items()
            for expert, slot in pager.resident.slot_of.items()
        ),
        "whole_copies": sum(
            tuple(tensor.shape) in shapes and not tensor.is_meta and tensor.data_ptr() not in masters
            for tensor in everything
        ),
    }


def _private_bytes() -> int:
    """Memory of this process that no other shares and that is no file's."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024


def _counters(files: list[Path]) -> list[dict[str, Any]]:
    """What every worker counted, as any other process would read it."""
    from wisp.pager.counters import Counters

    opened = [Counters.open(path) for path in files]
    return [
        {
            "layers": {name: counters.layer(index) for index, name in enumerate(counters.layers)},
            "total": counters.total(),
            "facts": vars(counters.facts),
            "page_locked": counters.page_locked,
        }
        for counters in opened
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
