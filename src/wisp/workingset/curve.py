"""The miss curve: how many misses an LRU layer has, as a function of its slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wisp.errors import ConfigError
from wisp.trace import RoutingTrace
from wisp.workingset.stack import count_depths


@dataclass(frozen=True, eq=False)
class MissCurve:
    """Misses for every capacity from no slot to one for each expert; it never increases.

    From `widest_step` slots up the misses equal the faults of a replay with LRU. Below, where a step takes
    several waves, they are the misses of an ideal stack and no promise.
    """

    misses: NDArray[np.float64]
    """[num_experts + 1]: misses[c] with c slots; misses[0] is the number of references."""
    cold_misses: float
    """First references: the part of every entry that no capacity saves."""
    steps: float
    """Steps observed (fading ones count in part)."""
    widest_step: int
    """Experts of the widest step."""

    @classmethod
    def from_depths(
        cls, warm: NDArray[np.floating | np.integer], cold: float, steps: float, widest_step: int
    ) -> "MissCurve":
        """The curve of references counted by depth (`warm`: [num_experts]) and `cold` first ones."""
        hits = np.concatenate([[0.0], np.cumsum(warm, dtype=np.float64)])
        return cls(hits[-1] + cold - hits, cold, steps, widest_step)

    @classmethod
    def total(cls, curves: Sequence["MissCurve"]) -> "MissCurve":
        """The misses of several layers of one trace together, each with the same number of slots.

        Raises:
            ConfigError: there is no layer, or they differ in experts or in steps.
        """
        shapes = {(len(curve.misses) - 1, curve.steps) for curve in curves}
        if len(shapes) != 1:
            raise ConfigError(
                f"only curves of the same experts and steps add up; these have {sorted(shapes)}, "
                f"so add them layer group by layer group"
            )
        return cls(
            np.sum([curve.misses for curve in curves], axis=0),
            sum(curve.cold_misses for curve in curves),
            curves[0].steps,
            max(curve.widest_step for curve in curves),
        )

    @property
    def num_experts(self) -> int:
        """The capacity at which only cold misses are left."""
        return len(self.misses) - 1

    @property
    def references(self) -> float:
        """References observed."""
        return float(self.misses[0])

    def misses_at(self, slots: int) -> float:
        """Misses with this many slots."""
        return float(self.misses[self._checked(slots)])

    def miss_ratio(self, slots: int) -> float:
        """Misses over references; 0 where nothing was referenced."""
        return self.misses_at(slots) / self.references if self.references else 0.0

    def misses_per_step(self, slots: int) -> float:
        """Misses over steps; 0 where no step was observed."""
        return self.misses_at(slots) / self.steps if self.steps else 0.0

    def value_of_next_slot(self, slots: int) -> float:
        """Misses that one slot more would save: -m'(slots) of the paper; 0 once every expert has a slot."""
        return self.misses_at(slots) - float(self.misses[min(slots + 1, self.num_experts)])

    def _checked(self, slots: int) -> int:
        if not 0 <= slots <= self.num_experts:
            raise ConfigError(f"{slots} slots are off this curve; it covers 0 to {self.num_experts}")
        return slots


def miss_curves(trace: RoutingTrace) -> list[MissCurve]:
    """The curve of each layer of the trace; `MissCurve.total` adds them up."""
    counts = count_depths(trace)
    widest = trace.widths().max(axis=1, initial=0)
    return [
        MissCurve.from_depths(warm, float(cold), trace.steps, int(width))
        for warm, cold, width in zip(counts.warm, counts.cold, widest, strict=True)
    ]
