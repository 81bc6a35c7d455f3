"""Routing to assume where none was recorded.

A stated prior, not a measurement. Each stream keeps each of its experts from one step to the next with a probability;
the others come from a Zipf popularity that the streams of a layer share, raised for experts of the last eight steps.
It is the generator of `benchmarks/iso_vram`: with 128 experts, top-8 and one stream 45 % repeat from the step before
and 81 % within eight, as was reported for Qwen3-30B-A3B. For another model the parameters stay and N and top-k change,
which is an assumption about that model. A step of several streams is the union of theirs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wisp.trace import RoutingTrace

WARM_STEPS = 64
_LAYERS, _STEPS, _FEWEST_STEPS = 8, 256, 96
_LARGEST_DRAW, _MOST_DRAWS = 1 << 14, 1 << 23  # of a step; in all: keeps the largest models under a second


@dataclass(frozen=True)
class PriorRouting:
    """The generator's parameters."""

    stay: float = 0.452
    """Probability that an expert of the step before is needed again."""
    zipf: float = 1.1
    recent_bonus: float = 0.9
    """Added to the logarithm of the popularity of an expert used two to eight steps ago."""
    seed: int = 1

    def __str__(self) -> str:
        return (
            f"a stated prior, not recorded (--trace takes a recording): {self.stay:.0%} of a stream's experts stay "
            f"from step to step, the rest Zipf({self.zipf:g}), raised e^{self.recent_bonus:g} where used within 8 steps"
        )

    def trace(self, num_experts: int, top_k: int, streams: int) -> RoutingTrace:
        """Some layers of routing, the first `WARM_STEPS` steps of which are for warming up; always the same."""
        layers = max(1, min(_LAYERS, _LARGEST_DRAW // (streams * num_experts)))
        steps = max(_FEWEST_STEPS, min(_STEPS, _MOST_DRAWS // (layers * streams * num_experts)))
        membership = np.zeros((layers, steps, num_experts), dtype=np.bool_)
        rng = np.random.default_rng(self.seed)
        rank = np.argsort(rng.random((layers, 1, num_experts)), axis=-1)
        popularity = np.exp(-self.zipf * np.log1p(rank))
        last_used = np.full((layers, streams, num_experts), -steps, dtype=np.int16)
        for step in range(steps):
            chosen = self._choose(rng, popularity, np.int16(step) - last_used, min(top_k, num_experts))
            np.put_along_axis(last_used, chosen, step, axis=-1)
            membership[:, step] = (last_used == step).any(axis=1)
        return RoutingTrace.from_membership(membership, np.full(steps, streams, dtype=np.int64))

    def _choose(
        self, rng: np.random.Generator, popularity: NDArray[np.float64], age: NDArray[np.int16], top_k: int
    ) -> NDArray[np.int64]:
        """int64 [layers, streams, top_k]: those whose clocks ring first, each ticking as fast as it is popular.

        It is the largest of popularity's logarithm and a Gumbel variate, of the same draws, for a logarithm less.
        """
        due = np.log(1.0 - rng.random(age.shape))
        due /= -popularity
        np.multiply(due, np.exp(-self.recent_bonus), out=due, where=(age >= 2) & (age <= 8))
        stays = rng.random(age.shape) < self.stay
        before = np.nonzero(age == 1)
        due[before] = np.where(stays[before], -1.0, np.inf)
        return np.argpartition(due, top_k - 1, axis=-1)[..., :top_k]
