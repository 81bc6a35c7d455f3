"""How one budget of device memory is divided between expert slots and KV blocks. Pure: no torch, no engine."""

from wisp.allocator.budget import Budget, device_budget
from wisp.allocator.calibration import STATED, Calibration
from wisp.allocator.model_shape import ModelShape, model_shape, read_model_shape
from wisp.allocator.plan import Plan, make_plan
from wisp.allocator.question import Question
from wisp.allocator.split import Candidate, Rates, Split, split
from wisp.allocator.workload import Workload

__all__ = [
    "STATED",
    "Budget",
    "Calibration",
    "Candidate",
    "ModelShape",
    "Plan",
    "Question",
    "Rates",
    "Split",
    "Workload",
    "device_budget",
    "make_plan",
    "model_shape",
    "read_model_shape",
    "split",
]
