"""Which experts of one layer are resident, in which slot, and what a step must load: the heart.

`plan` decides and commits the page table on the host, but touches no tensor: the caller then copies what the
plan says, wave by wave. The simulator and the pager share this file, so they fault on the same steps; and an
expert that a step has loaded cannot fall victim to the same wave's copying, because by then all is decided.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wisp.errors import ConfigError, WorkingSetTooLargeError
from wisp.policies.base import ReplacementPolicy
from wisp.trace import as_step

NOT_RESIDENT = -1
"""What `slot_table` holds for an expert without a slot: the device's convention (vLLM's `expert_map`)."""


class Load(NamedTuple):
    """Copy this expert from the backing store into this slot."""

    expert: int
    slot: int


class Move(NamedTuple):
    """Copy this expert's bytes from one slot to another, which is free."""

    expert: int
    from_slot: int
    to_slot: int


class Wave(NamedTuple):
    """Experts computed together. First `evictions` give up their slots, then `loads` fill slots."""

    experts: tuple[int, ...]
    """Ascending; all of them are resident once the loads are done."""
    loads: tuple[Load, ...]
    evictions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PagePlan:
    """What one step changes, in the order in which it has to happen.

    A step that fits into the slots is one wave (of no experts, if the step has none).
    """

    waves: tuple[Wave, ...]
    direct: tuple[int, ...] = ()
    """Experts of the only wave that get no slot: the kernel reads them from the backing store."""

    @property
    def loads(self) -> tuple[Load, ...]:
        """The loads of all waves; two waves may fill the same slot one after the other."""
        return tuple(chain.from_iterable(wave.loads for wave in self.waves))

    @property
    def evictions(self) -> tuple[int, ...]:
        """The experts that lose their slot, in order; some may have been loaded for an earlier wave."""
        return tuple(chain.from_iterable(wave.evictions for wave in self.waves))

    @property
    def faults(self) -> int:
        """How many experts of the step were not resident before it."""
        return sum(len(wave.loads) for wave in self.waves) + len(self.direct)


@dataclass(frozen=True, slots=True)
class ResizePlan:
    """What a resize changes: first `evictions` give up their slots, then `moves` happen, in any order."""

    evictions: tuple[int, ...]
    moves: tuple[Move, ...]


class ResidentSet:
    """The page table of one layer: at most `slots` of `num_experts` experts are resident."""

    def __init__(self, num_experts: int, slots: int, policy: ReplacementPolicy) -> None:
        """Start with nothing resident; `policy` is fresh and serves this set alone.

        Raises:
            ConfigError: there is no expert, no slot, or a slot that no expert could use.
        """
        if num_experts < 1:
            raise ConfigError(f"num_experts={num_experts}: a layer has at least one expert")
        self.num_experts = num_experts
        self._slots = self._checked(slots)
        self._policy = policy
        self._slot_of: dict[int, int] = {}
        self._free = list(range(slots - 1, -1, -1))  # descending: the lowest is popped first
        self.slot_of: Mapping[int, int] = MappingProxyType(self._slot_of)
        """expert -> slot of what is resident; a read-only view that follows every change."""

    @property
    def slots(self) -> int:
        """How many experts can be resident."""
        return self._slots

    @property
    def resident(self) -> tuple[int, ...]:
        """The resident experts, ascending."""
        return tuple(sorted(self._slot_of))

    @property
    def free_slots(self) -> tuple[int, ...]:
        """The slots without an expert, ascending."""
        return tuple(reversed(self._free))

    def slot_table(self) -> NDArray[np.int32]:
        """int32 [num_experts]: the slot of each expert, NOT_RESIDENT where it has none; a fresh array."""
        table = np.full(self.num_experts, NOT_RESIDENT, dtype=np.int32)
        table[list(self._slot_of.keys())] = list(self._slot_of.values())
        return table

    def plan(self, step: Iterable[int], *, single_wave: bool = False, direct: bool = False) -> PagePlan:
        """Make every expert of the step resident for its wave, and say what to copy.

        The resident experts of the step run in the first wave, beside as many missing ones as there is room
        for; further waves, each as wide as the slots, hold the rest. An expert is never evicted before its
        own wave has run. Missing experts, ascending, take the free slots, lowest first, then those of the
        victims in the order of their eviction.

        Args:
            step: expert ids in any order, repeats allowed.
            single_wave: refuse a step wider than the slots, for a kernel that needs all experts at once.
            direct: run a step wider than the slots in one wave; the missing experts that find no slot, the highest
                ids, are the plan's `direct` ones, for a kernel that can read the backing store.

        Raises:
            StepError: an id is out of range. WorkingSetTooLargeError: see `single_wave`. Nothing has changed.
        """
        experts = as_step(step, self.num_experts)
        if single_wave and len(experts) > self._slots:
            raise WorkingSetTooLargeError(len(experts), self._slots)
        missing = [expert for expert in experts if expert not in self._slot_of]
        self._policy.touch(experts)
        if len(experts) <= self._slots:
            return PagePlan((self._run(experts, missing),))
        if direct:
            room = self._slots - (len(experts) - len(missing))
            for expert in missing[room:]:
                self._policy.forget(expert)
            return PagePlan((self._run(experts, missing[:room]),), tuple(missing[room:]))
        return PagePlan(tuple(self._run(*wave) for wave in self._cut(experts, missing)))

    def resize(self, slots: int) -> ResizePlan:
        """Change the number of slots; growing keeps everything, shrinking evicts what the policy ranks first.

        The survivors in slots that go away move, ascending, to the lowest free slots.

        Raises:
            ConfigError: see the constructor. Nothing has changed.
        """
        slots = self._checked(slots)
        evictions, _ = self._evict(len(self._slot_of) - slots, set(self._slot_of))
        taken = set(self._slot_of.values())
        free = [slot for slot in range(slots) if slot not in taken]
        stranded = sorted((slot, expert) for expert, slot in self._slot_of.items() if slot >= slots)
        moves = tuple(Move(expert, slot, free[i]) for i, (slot, expert) in enumerate(stranded))
        self._slot_of.update((move.expert, move.to_slot) for move in moves)
        self._free = free[len(moves) :][::-1]
        self._slots = slots
        return ResizePlan(evictions, moves)

    def abandon(self, plan: PagePlan) -> tuple[int, ...]:
        """After a copy of this plan failed: drop every expert it loaded, whose bytes cannot be trusted.

        Returns the experts dropped, in the order of their loads.
        """
        dropped = tuple(expert for expert, slot in plan.loads if self._slot_of.get(expert) == slot)
        for expert in dropped:
            self.forget(expert)
        return dropped

    def forget(self, expert: int) -> None:
        """Drop one expert and free its slot; does nothing if it is not resident."""
        if expert in self._slot_of:
            self._free.append(self._release(expert))
            self._free.sort(reverse=True)

    def _cut(self, experts: Sequence[int], missing: Sequence[int]) -> Iterator[tuple[tuple[int, ...], Sequence[int]]]:
        """The waves of a step wider than the slots: experts, and which of them are missing."""
        room = self._slots - (len(experts) - len(missing))
        late = set(missing[room:])
        yield tuple(expert for expert in experts if expert not in late), missing[:room]
        for start in range(room, len(missing), self._slots):
            wave = missing[start : start + self._slots]
            yield tuple(wave), wave

    def _run(self, experts: tuple[int, ...], missing: Sequence[int]) -> Wave:
        """Commit one wave: evict what is in its way, give its missing experts their slots."""
        if not missing:
            return Wave(experts, (), ())
        free = self._free
        slots = [free.pop() for _ in range(min(len(missing), len(free)))]
        evictions: tuple[int, ...] = ()
        if len(slots) < len(missing):
            evictions, freed = self._evict(len(missing) - len(slots), self._slot_of.keys() - experts)
            slots += freed
        loads = tuple(map(Load, missing, slots))
        self._slot_of.update(loads)
        return Wave(experts, loads, evictions)

    def _evict(self, count: int, evictable: set[int]) -> tuple[tuple[int, ...], list[int]]:
        """Take the slots of `count` experts (none if negative) as the policy ranks them: (experts, slots)."""
        victims: list[int] = []
        slots: list[int] = []
        for _ in range(count):
            victim = self._policy.victim(evictable)
            evictable.remove(victim)  # fails if a policy names an expert that may not go
            victims.append(victim)
            slots.append(self._release(victim))
        return tuple(victims), slots

    def _release(self, expert: int) -> int:
        self._policy.forget(expert)
        return self._slot_of.pop(expert)

    def _checked(self, slots: int) -> int:
        if not 1 <= slots <= self.num_experts:
            raise ConfigError(
                f"{slots} expert slots for a layer of {self.num_experts} experts; "
                f"set expert_slots between 1 and {self.num_experts}"
            )
        return slots
