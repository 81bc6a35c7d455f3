"""How deep references reach, updated step by step, with the past fading: a miss curve at any time.

The depths are those of `wisp.workingset.stack`. A step's weight halves every `half_life_steps` steps, so the curve
is of the workload as it is now; without a half-life it is exactly that of the whole past.
"""

import numpy as np
from numpy.typing import NDArray

from wisp.errors import ConfigError
from wisp.workingset.curve import MissCurve

HALF_LIFE_STEPS = 1024.0
"""The default. Such a histogram weighs as much as 1.44 * 1024 = 1477 steps: of top-8 routing about 11,800 references
a layer, so that a miss ratio of 10 % is known to 3 % of itself (one standard deviation, as of independent references)
in each layer and to 0.4 % over 48 layers; yet after a turn of some thousand tokens the workload before it counts for
half. A quarter of it would double the noise; four times as much would outlast the conversation."""


def decay(steps: float, half_life_steps: float | None) -> float:
    """What a weight of 1 has become after so many steps; 1 without a half-life."""
    return 1.0 if half_life_steps is None else 0.5 ** (steps / half_life_steps)


def check_half_life(half_life_steps: float | None) -> None:
    """`ConfigError` unless it is a positive number of steps, or None."""
    if half_life_steps is not None and not half_life_steps > 0:
        raise ConfigError(
            f"half_life_steps is {half_life_steps}; give a positive number of steps, or None to forget nothing"
        )


class ExpertHistogram:
    """The stack of every layer and how often each depth was referenced; a step costs one small sort a layer.

    Its memory is 24 bytes for each expert of each layer, however long it runs.
    """

    def __init__(self, layers: int, num_experts: int, *, half_life_steps: float | None = HALF_LIFE_STEPS) -> None:
        if layers < 1 or num_experts < 1:
            raise ConfigError(f"{layers} layers of {num_experts} experts; a histogram needs one of each or more")
        check_half_life(half_life_steps)
        self.layers, self.num_experts, self.half_life_steps = layers, num_experts, half_life_steps
        self._fade = decay(1, half_life_steps)
        self._last_use = np.zeros(
            (layers, num_experts), dtype=np.int64
        )  # as in `stack`: step * N + (N - id); 0 = never
        self._place = np.arange(num_experts, 0, -1)
        self._warm = np.zeros((layers, num_experts))
        self._cold = np.zeros(layers)
        self._widest = np.zeros(layers, dtype=np.int64)
        self._seen = 0
        self._steps = 0.0

    @property
    def steps(self) -> float:
        """Steps observed, fading ones in part."""
        return self._steps

    def observe(self, membership: NDArray[np.bool_]) -> None:
        """One step of all layers: bool [layers, num_experts], whether the step requires the expert.

        Raises:
            ConfigError: the shape is another.
        """
        if membership.shape != self._warm.shape or membership.dtype != np.bool_:
            raise ConfigError(
                f"a step of this histogram is bool {list(self._warm.shape)}, "
                f"not {membership.dtype} {list(membership.shape)}"
            )
        known = self._last_use > 0
        tagged = np.sort(self._last_use * 2 + (membership & known), axis=1)
        self._warm *= self._fade
        self._warm += (tagged & 1)[:, ::-1]
        self._cold *= self._fade
        self._cold += np.count_nonzero(membership & ~known, axis=1)
        self._steps = self._steps * self._fade + 1
        np.maximum(self._widest, np.count_nonzero(membership, axis=1), out=self._widest)
        np.copyto(self._last_use, self._seen * self.num_experts + self._place, where=membership)
        self._seen += 1

    def curves(self) -> list[MissCurve]:
        """The curve of each layer as of now; the widest step is that of the whole past."""
        return [
            MissCurve.from_depths(warm, float(cold), self._steps, int(width))
            for warm, cold, width in zip(self._warm, self._cold, self._widest, strict=True)
        ]
