"""The split that an engine chooses at its start, once it has measured what it takes beside slots and KV.

The model was loaded with as few slots as can serve. vLLM then profiles itself; what the budget leaves is divided by
the allocator that `wisp plan` uses; the slots are made anew, as many as were chosen; KV gets the rest. All ranks plan
by the numbers of the one with the least room, and so choose alike.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from wisp.allocator import Budget, Plan, Question, make_plan
from wisp.allocator.calibration import STATED
from wisp.allocator.engine_facts import EngineFacts
from wisp.allocator.explanation import why
from wisp.allocator.kv_choice import chosen_kv
from wisp.allocator.kv_layout import KvLayout
from wisp.byte_text import size_from
from wisp.engines.vllm import failure
from wisp.engines.vllm.budget.plan_inputs import PlanInputs
from wisp.engines.vllm.budget.start_room import CUDA_CONTEXT_BYTES
from wisp.engines.vllm.ranks import least_of_all_ranks
from wisp.errors import ConfigError, UnsupportedError
from wisp.pager.address_range import CHUNK_BYTES
from wisp.pager.host_memory import HostMemory
from wisp.recording import Recording
from wisp.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from wisp.engines.vllm.paging import WorkerPaging
    from wisp.engines.vllm.settings import WispSettings

logger = logging.getLogger("vllm.wisp")


class _Choice(NamedTuple):
    slots: int
    kv_blocks: int
    lines: list[str]
    """What to tell of it."""


@failure.handed_over()
def kv_bytes_at_start(vllm_worker: Any, paging: "WorkerPaging", measure: Callable[[], int]) -> int:
    """Divide the budget of the settings, make the slots, and return what KV gets, in bytes of this rank.

    Args:
        vllm_worker: vLLM's worker, its model loaded.
        paging: our part of it.
        measure: vLLM's own `determine_available_memory`.

    Raises:
        AdmissionFloorError: the budget does not hold what the engine takes, top-k slots and the KV of all sequences.
    """
    total = paging.settings.gpu_memory_bytes
    assert total is not None, "there is a budget to divide"
    on_cpu = vllm_worker.device.type == "cpu"
    fixed = {} if on_cpu else _measured(vllm_worker, paging, total, measure)
    layout = _layout(vllm_worker)
    facts = EngineFacts(_slot_bytes(paging), layout, fixed)
    inputs = PlanInputs.read(vllm_worker.vllm_config, paging.settings)
    choice = _choice(_question(vllm_worker.vllm_config, inputs, facts, total), inputs.recording, paging.settings)
    kv_bytes = choice.kv_blocks * layout.block_bytes
    if vllm_worker.is_driver_worker:
        for doubt in inputs.doubts:
            logger.warning("%s", doubt)
        for line in choice.lines:
            logger.info("%s", line)
    if on_cpu:
        need = kv_bytes + (choice.slots - paging.slots) * facts.slot_bytes
        what = f"what gpu_memory {paging.settings.gpu_memory} gives to slots and KV"
        HostMemory.read().check(need, what, remedy="or lower gpu_memory")
    if choice.slots != paging.slots:
        paging.make_slots(choice.slots)
    vllm_worker.cache_config.kv_cache_memory_bytes = kv_bytes if on_cpu else None
    if on_cpu:  # nothing of it depends on what is free, so vLLM warms up with the slots that it will have
        return measure()
    vllm_worker.available_kv_cache_memory_bytes = kv_bytes
    return kv_bytes


def _measured(vllm_worker: Any, paging: "WorkerPaging", total_bytes: int, measure: Callable[[], int]) -> dict[str, int]:
    """What this engine takes on its GPU beside slots and KV, by kind; the same on every rank."""
    # vLLM's own worker has it from its first look; a worker of another class may have asked vLLM for its share
    vllm_worker.requested_memory = total_bytes - CUDA_CONTEXT_BYTES
    kv_bytes = measure()
    if vllm_worker.cache_config.kv_cache_memory_bytes is not None:
        raise ConfigError(
            "vLLM has taken its KV size from VLLM_ENABLE_STARTUP_PLAN and measured nothing; unset that variable, or "
            "leave gpu_memory out"
        )
    slot_bytes = paging.slots * _slot_bytes(paging)
    in_graph = paging.in_graph is not None
    pageable_bytes = least_of_all_ranks(kv_bytes + slot_bytes - rounded_regions(paging) * CHUNK_BYTES)
    weights = int(vllm_worker.model_runner.model_memory_usage)  # by PyTorch, which does not see mapped memory
    parts = {
        "weights beside experts": weights if in_graph else weights - slot_bytes,
        "activations and graphs": int(vllm_worker.peak_activation_memory),
        "CUDA's context (stated)": CUDA_CONTEXT_BYTES,
    }
    return {**parts, "rest of the engine": total_bytes - pageable_bytes - sum(parts.values())}


def _choice(question: Question, recording: Recording | None, settings: "WispSettings") -> _Choice:
    """By the plan, or by what the settings say of the slots."""
    if settings.expert_slots is None:
        kv = chosen_kv(question, recording, is_prior_asked_for=settings.conversations is not None)
        answer = make_plan(question, None if recording is None else recording.phase("auto"), kv)
        chosen = answer.choice.candidate
        return _Choice(chosen.expert_slots, chosen.kv_blocks, _five_lines(answer, str(settings.gpu_memory)))
    slots, budget = settings.expert_slots, question.budget
    blocks = _blocks_beside(slots, question)
    told = f"gpu_memory {settings.gpu_memory}, of which KV gets the rest, for expert_slots is given: "
    return _Choice(slots, blocks, [told + _where_bytes_go(budget, question.layout, slots, blocks)])


def _question(config: "VllmConfig", inputs: PlanInputs, facts: EngineFacts, total_bytes: int) -> Question:
    shape = inputs.shape
    kv_dtype = "fp8" if str(config.cache_config.cache_dtype).startswith("fp8") else "auto"
    of_a_rank = replace(shape, expert_bytes=facts.slot_bytes // shape.moe_layers, longest_context=None)
    return Question(of_a_rank, total_bytes, inputs.workload, kv_dtype, inputs.rates, facts=facts)


def _blocks_beside(slots: int, question: Question) -> int:
    """KV blocks that the budget leaves beside so many slots; `ConfigError` if they do not admit the workload."""
    budget, workload = question.budget, question.workload
    blocks = budget.blocks_left(slots)
    if blocks < budget.floor_blocks:
        need = budget.floor_bytes + (slots - budget.least_slots) * budget.slot_bytes
        fewer = budget.slots_left(budget.floor_blocks)
        remedy = f"lower expert_slots to {fewer}" if fewer >= budget.least_slots else "lower expert_slots"
        raise ConfigError(
            f"gpu_memory is {format_bytes(budget.total_bytes)} but expert_slots {slots}, the engine and the KV of "
            f"{workload.sequences} sequences of {workload.context} tokens take {format_bytes(need)}; {remedy}, lower "
            f"--max-num-seqs or --max-model-len, or set gpu_memory to {size_from(need)}"
        )
    return blocks


def _layout(vllm_worker: Any) -> KvLayout:
    """How this engine cuts its KV, by vLLM's own arithmetic."""
    from vllm.v1.core.kv_cache_utils import _pool_bytes_per_block, get_kv_cache_groups
    from vllm.v1.kv_cache_interface import MambaSpec

    config = vllm_worker.vllm_config
    groups = get_kv_cache_groups(config, dict(vllm_worker.get_kv_cache_spec()))
    states = sum(isinstance(group.kv_cache_spec, MambaSpec) for group in groups)
    attention = [group for group in groups if not isinstance(group.kv_cache_spec, MambaSpec)]
    if len(attention) != 1:
        raise UnsupportedError(
            f"{config.model_config.model} keeps its KV in {len(attention)} groups of attention layers, which "
            f"gpu_memory cannot divide for yet; set the split by hand with --expert-slots and --kv-cache-memory-bytes"
        )
    return KvLayout(int(attention[0].kv_cache_spec.block_size), int(_pool_bytes_per_block(config, groups)), states)


def _slot_bytes(paging: "WorkerPaging") -> int:
    """One slot in every layer, on this rank."""
    in_rows = paging.in_graph is not None and not paging.in_graph.arena.planar
    return sum(store.layout.row_bytes if in_rows else store.expert_bytes for store in paging.stores)


def rounded_regions(paging: "WorkerPaging") -> int:
    """In how many pieces of addresses the slots lie, whose memory is each rounded up to whole chunks."""
    if paging.in_graph is None:
        return 0
    arena = paging.in_graph.arena
    return len(arena.tensors) if arena.planar else 1


def _where_bytes_go(budget: Budget, layout: KvLayout, slots: int, blocks: int) -> str:
    slot_bytes, kv_bytes = slots * budget.slot_bytes, blocks * budget.block_bytes
    fixed = sum(budget.fixed.values())
    left = budget.total_bytes - fixed - slot_bytes - kv_bytes
    return (
        f"{slots} of {budget.most_slots} expert slots a layer ({format_bytes(slot_bytes)}), {blocks:,} KV blocks of "
        f"{layout.block_tokens} tokens ({format_bytes(kv_bytes)}), {_parts(budget.fixed)}{format_bytes(left)} left over"
    )


def _parts(fixed: Mapping[str, int]) -> str:
    if not fixed:
        return ""
    parts = ", ".join(f"{kind} {format_bytes(count)}" for kind, count in fixed.items())
    return f"the engine as measured {format_bytes(sum(fixed.values()))} ({parts}), "


def _five_lines(answer: Plan, size: str) -> list[str]:
    """Where the bytes go, why, what to expect, what else there is, and by which numbers."""
    chosen, choice, workload = answer.choice.candidate, answer.choice, answer.question.workload
    split, rates = answer.split, answer.question.calibration
    second = f"; second best {answer.runner_up.candidate.expert_slots} slots" if answer.runner_up else ""
    source = f"measured on {rates.machine} with {rates.model} on {rates.date}"
    return [
        f"plan of gpu_memory {size}: "
        + _where_bytes_go(answer.budget, answer.layout, chosen.expert_slots, chosen.kv_blocks),
        f"why: {why(answer)}",
        f"expected: {choice.hit_ratio:.1%} hits, {choice.decode_tok_s:.1f} tok/s for one stream, "
        f"{choice.decode_tok_s_all:.1f} for {answer.demand.streams:.4g}, first token of a turn after "
        f"{format_seconds(choice.ttft_s)}, {choice.lost_share:.0%} of turns without their history",
        f"128MiB more would save {format_seconds(split.value_of_more_experts)} a second of work as slots, "
        f"{format_seconds(split.value_of_more_kv)} as KV{second}",
        f"by: costs {'stated' if rates is STATED else 'calibrated'}, {source}; routing {answer.demand.source}; "
        f"KV {answer.kv.source}; "
        f"{workload.conversations} conversations, {workload.sequences} at once, up to {workload.context} tokens",
    ]
