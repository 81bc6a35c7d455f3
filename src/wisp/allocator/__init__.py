"""How one budget of device memory is divided between expert slots and KV blocks. Pure: no torch, no engine."""

from wisp.allocator.calibration import STATED, Calibration
from wisp.allocator.model_shape import ModelShape, model_shape, read_model_shape
from wisp.allocator.workload import Workload

__all__ = [
    "STATED",
    "Calibration",
    "ModelShape",
    "Workload",
    "model_shape",
    "read_model_shape",
]
