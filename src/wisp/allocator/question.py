"""What is to be planned: a model, a budget and a workload."""

from dataclasses import dataclass

from wisp.allocator.budget import ENGINE_OVERHEAD_BYTES, Budget, device_budget
from wisp.allocator.calibration import STATED, Calibration
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

    @property
    def layout(self) -> KvLayout:
        """How the KV is cut into blocks."""
        return kv_layout(self.shape, self.kv_dtype)

    @property
    def budget(self) -> Budget:
        """Where the bytes go."""
        return device_budget(
            self.shape, self.layout, self.workload, self.total_bytes, overhead_bytes=self.overhead_bytes
        )
