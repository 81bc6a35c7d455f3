"""Records what a running engine routes to and which KV blocks it refers to.

The engine's core runs in this process and the host decides: every pager then shows its plan to `observe`. The rest is
heard by wrapping methods of the engine's own scheduler and block pool, the objects and not their classes, until
`detach`. What a hook costs is measured: `seconds`.
"""

import time
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wisp.engines.vllm.layer import PagedRoutedExperts
from wisp.errors import UnsupportedError
from wisp.kv_trace import KvEvent, KvTrace
from wisp.pager.pager import ExpertPager
from wisp.recording import Recording
from wisp.resident import PagePlan
from wisp.trace import RoutingTrace


class EngineRecorder:
    """One recording, from `attach` to `detach`."""

    def __init__(self, pagers: list[ExpertPager], scheduler: Any) -> None:
        self._pagers, self._scheduler = pagers, scheduler
        self._pool: Any = scheduler.kv_cache_manager.block_pool
        self._num_experts = pagers[0].resident.num_experts
        self._plans: list[list[tuple[int, ...]]] = [[] for _ in pagers]  # of the step that runs
        self._rows: list[NDArray[np.uint8]] = []
        self._counts: list[tuple[int, int, int]] = []  # tokens, prefill tokens, requests of each step
        self._kv: list[tuple[int, int, KvEvent]] = []  # block, step, event
        self._known: set[int] = set()
        self._preemptions: list[int] = []
        self.seconds = 0.0
        """Spent in recording so far."""
        for place, pager in enumerate(pagers):
            pager.observe = partial(self._take_plan, place)
        self._wrap(scheduler, "schedule", self._schedule)
        self._wrap(scheduler, "_preempt_request", self._preempt)
        self._wrap(self._pool, "touch", self._touch)
        self._wrap(self._pool, "cache_full_blocks", self._cache)

    @classmethod
    def attach(cls, engine: Any) -> "EngineRecorder":
        """Record this engine, made with its core in this process, from its next step on.

        Raises:
            UnsupportedError: nothing is paged, the device decides, or the core runs elsewhere.
        """
        core = getattr(engine.engine_core, "engine_core", None)
        if core is None:
            raise UnsupportedError(
                "only an engine whose core runs in this process can be recorded; set VLLM_ENABLE_V1_MULTIPROCESSING=0"
            )
        (layers,) = engine.apply_model(
            lambda model: [module for module in model.modules() if isinstance(module, PagedRoutedExperts)]
        )
        try:
            pagers = [layer.pager for layer in layers]
        except KeyError:
            raise UnsupportedError(
                "where the device decides, no plan reaches the host, so routing cannot be recorded yet; "
                "set decide to host and add --enforce-eager"
            ) from None
        if not pagers:
            raise UnsupportedError("this engine pages nothing, so there is no routing to record; set expert_slots")
        return cls(pagers, core.scheduler)

    def detach(self) -> None:
        """Leave the engine as it was; what was recorded stays."""
        for pager in self._pagers:
            pager.observe = None
        for owner, name in (
            (self._scheduler, "schedule"),
            (self._scheduler, "_preempt_request"),
            (self._pool, "touch"),
            (self._pool, "cache_full_blocks"),
        ):
            owner.__dict__.pop(name, None)

    def recording(self) -> Recording:
        """What has been recorded so far, the running step included."""
        self._end_step()
        bits = np.zeros((len(self._pagers), len(self._rows), -(-self._num_experts // 8)), dtype=np.uint8)
        for step, row in enumerate(self._rows):
            bits[:, step] = row
        tokens, prefill, requests = np.array(self._counts, dtype=np.int64).reshape(-1, 3).T.copy()
        return Recording(
            RoutingTrace(bits, self._num_experts, tokens),
            prefill,
            requests,
            self._pagers[0].store.expert_bytes,
            KvTrace(
                np.array([block for block, _, _ in self._kv], dtype=np.uint64),
                np.array([step for _, step, _ in self._kv], dtype=np.int64),
                np.array([event for _, _, event in self._kv], dtype=np.uint8),
                np.array(self._preemptions, dtype=np.int64),
                int(self._scheduler.block_size),
                int(self._pool.num_gpu_blocks),
            ),
        )

    def _wrap(self, owner: Any, name: str, take: Callable[..., None]) -> None:
        """Shadow a method on this object; `take` gets its result and arguments afterwards."""
        original = getattr(owner, name)

        @wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            start = time.perf_counter()
            take(result, *args, **kwargs)
            self.seconds += time.perf_counter() - start
            return result

        setattr(owner, name, wrapped)

    def _take_plan(self, place: int, plan: PagePlan) -> None:
        start = time.perf_counter()
        self._plans[place].extend(wave.experts for wave in plan.waves)
        self.seconds += time.perf_counter() - start

    def _schedule(self, output: Any, *_: Any, **__: Any) -> None:
        """A step is about to run: the one before it has been planned in full."""
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            return
        self._end_step()
        prefill = sum(count for name, count in scheduled.items() if not self._decodes(name, count))
        self._counts.append((sum(scheduled.values()), prefill, len(scheduled)))

    def _decodes(self, name: str, count: int) -> bool:
        """Whether this is the next token of an answer; `schedule` has already counted it as computed."""
        request = self._scheduler.requests[name]
        return count == 1 and request.num_output_tokens > 0 and request.num_computed_tokens == request.num_tokens

    def _end_step(self) -> None:
        """Pack what the pagers have planned since the step began."""
        if len(self._rows) == len(self._counts):
            return
        member = np.zeros((len(self._plans), self._num_experts), dtype=np.bool_)
        for place, waves in enumerate(self._plans):
            for experts in waves:
                member[place, list(experts)] = True
            waves.clear()
        self._rows.append(np.packbits(member, axis=1))

    @property
    def _step(self) -> int:
        """The step that is being scheduled."""
        return len(self._counts)

    def _preempt(self, _: Any, *__: Any, **___: Any) -> None:
        self._preemptions.append(self._step)

    def _touch(self, _: Any, blocks: Any) -> None:
        """Blocks of a request, found in the prefix cache."""
        for block in reversed(list(blocks)):
            if block.block_hash is not None:
                self._refer(block, KvEvent.HIT)

    def _cache(
        self, _: Any, request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int, *__: Any, **___: Any
    ) -> None:
        """Blocks of a request that have become full; masked and null ones have no hash."""
        present = self._pool.cached_block_hash_to_block
        for block in reversed(blocks[num_cached_blocks:num_full_blocks]):
            if block.block_hash is None:
                continue
            if present.get_one_block(block.block_hash) is not block:  # the older of two comes first
                self._refer(block, KvEvent.DUPLICATE)
            elif _name(block.block_hash) in self._known:
                self._refer(block, KvEvent.CAPACITY_MISS)
            else:
                self._refer(block, KvEvent.INSERT)

    def _refer(self, block: Any, event: KvEvent) -> None:
        name = _name(block.block_hash)
        self._known.add(name)
        self._kv.append((name, self._step, event))


def _name(block_hash: bytes) -> int:
    """64 bits of a hash, which ends in the number of its KV cache group."""
    return int.from_bytes(block_hash[:8], "little") ^ int.from_bytes(block_hash[-4:], "big")
