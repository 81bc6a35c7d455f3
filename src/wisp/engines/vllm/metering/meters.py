"""What an engine meters while it serves, as seen from its core, and what it says of other sizes of its memories."""

import time
from typing import Any

from wisp.engines.vllm.metering import expert_meter
from wisp.engines.vllm.metering.expert_meter import ExpertDepths
from wisp.engines.vllm.metering.kv_meter import KvMeter
from wisp.errors import UnsupportedError
from wisp.workingset.curve import MissCurve
from wisp.workingset.histogram import HALF_LIFE_STEPS

_KV_SHARES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Of the blocks that the pool has: where the curve of blocks is read."""


class Meters:
    """Of both streams of references, from its creation to `stop`."""

    def __init__(self, core: Any) -> None:
        """Meter from the next step on that this `EngineCore` schedules.

        Raises:
            UnsupportedError: nothing is paged, or routing cannot be read where it is decided.
        """
        self._executor, self._read_seconds = core.model_executor, 0.0
        if reasons := [reply for reply in self._executor.collective_rpc(expert_meter.start) if reply is not None]:
            raise UnsupportedError(reasons[0])
        self._kv = KvMeter(core.scheduler)

    def read(self) -> dict[str, Any]:
        """Misses a step by size, as of now; both streams fade with `half_life_steps`.

        "experts": a list by slots, from 0 to all experts, summed over layers, and how many steps were lost to it by the
        stage that lost most; "kv": by the shares of the pool's blocks.
        """
        start = time.perf_counter()
        depths: list[ExpertDepths] = [d for d in self._executor.collective_rpc(expert_meter.read) if d is not None]
        experts, kv, blocks = [stage.curve for stage in depths], self._kv.curve(), self._kv.pool_blocks
        sizes = [max(1, round(share * blocks)) for share in _KV_SHARES]
        self._read_seconds += time.perf_counter() - start
        return {
            "half_life_steps": HALF_LIFE_STEPS,
            "seconds": self._kv.seconds + max(stage.seconds for stage in depths) + self._read_seconds,
            "experts": {
                "layers": sum(stage.layers for stage in depths),
                "expert_slots": depths[0].expert_slots,
                "lost_steps": max(stage.lost_steps for stage in depths),
                "misses_a_step": [
                    sum(curve.misses_per_step(slots) for curve in experts)
                    for slots in range(experts[0].num_experts + 1)
                ],
            },
            "kv": {
                "block_tokens": self._kv.block_tokens,
                "pool_blocks": blocks,
                "references_a_step": kv.references / kv.steps if kv.steps else 0.0,
                "misses_a_step": {str(size): _misses(kv, size) for size in sizes},
            },
        }

    def stop(self) -> None:
        """Leave the engine as it was."""
        self._kv.stop()
        self._executor.collective_rpc(expert_meter.stop)


def _misses(curve: MissCurve, blocks: int) -> float:
    return curve.misses_per_step(min(blocks, curve.num_experts))
