"""WiSP: serve mixture-of-experts models that do not fit in fast memory.

What is here needs numpy alone; the pager, the engines and the command line are imported by name.
"""

from wisp.errors import WispError
from wisp.policies import OFFLINE_POLICIES, POLICIES, ReplacementPolicy, make_policy
from wisp.resident import Load, Move, PagePlan, ResidentSet, ResizePlan, Wave
from wisp.trace import RoutingTrace, Step, TraceBuilder
from wisp.units import format_bytes, format_seconds, parse_bytes
from wisp.workingset import MissCurve, miss_curves

__version__ = "0.1.0"

__all__ = [
    "OFFLINE_POLICIES",
    "POLICIES",
    "Load",
    "MissCurve",
    "Move",
    "PagePlan",
    "ReplacementPolicy",
    "ResidentSet",
    "ResizePlan",
    "RoutingTrace",
    "Step",
    "TraceBuilder",
    "Wave",
    "WispError",
    "__version__",
    "format_bytes",
    "format_seconds",
    "make_policy",
    "miss_curves",
    "parse_bytes",
]
