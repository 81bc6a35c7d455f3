"""What is to be planned: a model, a budget and a workload."""

from dataclasses import dataclass

from wisp.allocator.budget import ENGINE_OVERHEAD_BYTES, Budget, device_budget
from wisp.allocator.calibration import STATED, Calibration
from wisp.allocator.engine_facts import EngineFacts
from wisp.allocator.kv_layout import KvLayout, kv_layout
from wisp.allocator.model_shape import ModelShape
from wisp.allocator.workload import Workload


@dataclass(frozen=True)
class Question:
    """What is to be planned."""

    shape: ModelShape
    total_bytes: int
    """Device memory that the engine may take in all."""
    workload: Workload
    kv_dtype: str = "auto"
    calibration: Calibration = STATED
    overhead_bytes: int = ENGINE_OVERHEAD_BYTES
    in_files: bool = False
    """Whether the checkpoint's files are the backing store."""
    facts: EngineFacts | None = None
    """Where an engine has measured them: they take the place of what the shape says, and of `overhead_bytes`."""

    @property
    def layout(self) -> KvLayout:
        """How the KV is cut into blocks."""
        return self.facts.layout if self.facts else kv_layout(self.shape, self.kv_dtype)

    @property
    def budget(self) -> Budget:
        """Where the bytes go."""
        if self.facts:
            return Budget(
                total_bytes=self.total_bytes,
                slot_bytes=self.facts.slot_bytes,
                block_bytes=self.layout.block_bytes,
                least_slots=self.shape.top_k,
                most_slots=self.shape.num_experts,
                floor_blocks=self.layout.floor_blocks(self.workload.context, self.workload.sequences),
                fixed=self.facts.fixed,
            )
        return device_budget(
            self.shape,
            self.layout,
            self.workload,
            self.total_bytes,
            overhead_bytes=self.overhead_bytes,
            in_files=self.in_files,
        )
