"""The expert pager of one MoE layer: the whole mechanism is `step`."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch

from wisp.pager.copy_clock import CopyClock
from wisp.pager.counters import Counters
from wisp.pager.pool import SlotPool
from wisp.pager.store import ExpertStore
from wisp.resident import NOT_RESIDENT, PagePlan, ResidentSet, Wave


class ExpertPager:
    """Keeps some experts of a layer in slots; the rest wait in the backing store.

    Copies and kernels share one stream, so a kernel that is launched after a wave was yielded finds its
    experts in their slots, and a later wave's copies wait for that kernel (P2 of the paper).
    """

    def __init__(
        self, resident: ResidentSet, store: ExpertStore, pool: SlotPool, counters: Counters, *, layer: int = 0
    ) -> None:
        self.resident, self.store, self.pool = resident, store, pool
        self._counters, self._layer = counters, layer
        self._clock = CopyClock(pool.device)
        self._slot_of = resident.slot_table()  # as of the wave that runs; the resident set is a whole step ahead
        self._running: PagePlan | None = None
        self.observe: Callable[[PagePlan], None] | None = None
        """Called with every plan once it is decided, before its copies."""

    def step(self, experts: Iterable[int], *, single_wave: bool = False) -> Iterator[Wave]:
        """Make the experts of one step resident, wave by wave; run the kernel on each wave before the next.

        With `single_wave` a step wider than the slots raises `WorkingSetTooLargeError` and changes nothing.
        """
        self._abandon(self._running)  # the caller failed, and something still refers to that step's generator
        plan = self._running = self.resident.plan(experts, single_wave=single_wave)
        try:
            if self.observe is not None:
                self.observe(plan)
            for wave in plan.waves:
                self._load(wave)
                yield wave
                assert self._running is plan, "the next step has begun before this one has ended"
            self._running = None
        finally:
            self._abandon(plan)
        self._count(plan)

    def slots_of(self, wave: Wave) -> torch.Tensor:
        """Which slot each expert of the wave that was yielded last is in: int32 [experts] on the pool's device.

        NOT_RESIDENT (-1) = not in this wave, as engines expect of an `expert_map`. That holds for resident
        experts of the step's other waves too, so that no expert is computed twice.
        """
        table = np.full_like(self._slot_of, NOT_RESIDENT)
        experts = list(wave.experts)
        table[experts] = self._slot_of[experts]
        return torch.from_numpy(table).to(self.pool.device)

    def reset(self) -> None:
        """Evict everything, as after an engine's warm-up."""
        self._abandon(self._running)
        for expert in self.resident.resident:
            self.resident.forget(expert)
        self._slot_of = self.resident.slot_table()
        self._clock = CopyClock(self.pool.device)  # a warm-up's copies may still be unfinished and uncounted

    def _abandon(self, plan: PagePlan | None) -> None:
        """If this step still runs, a copy or a kernel failed: promise none of the bytes that it was to bring."""
        if plan is not None and plan is self._running:
            self._running = None
            self.resident.abandon(plan)
            self._slot_of = self.resident.slot_table()

    def _load(self, wave: Wave) -> None:
        self._slot_of[list(wave.evictions)] = NOT_RESIDENT
        if not wave.loads:
            return
        with self._clock.measure():
            for load in wave.loads:
                self.pool.load(load.expert, load.slot)
                self._slot_of[load.expert] = load.slot

    def _count(self, plan: PagePlan) -> None:
        self._counters.add(
            self._layer,
            steps=1,
            references=sum(len(wave.experts) for wave in plan.waves),
            faults=plan.faults,
            bytes_moved=plan.faults * self.store.expert_bytes,
            evictions=len(plan.evictions),
            waves=len(plan.waves),
            copy_seconds=self._clock.harvest(),
        )
