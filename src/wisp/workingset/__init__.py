"""What a routing trace says about its working set: stack distances, miss curves, footprints."""

from wisp.workingset.curve import MissCurve, miss_curves
from wisp.workingset.stack import COLD, DepthCounts, LRUStack, count_depths

__all__ = ["COLD", "DepthCounts", "LRUStack", "MissCurve", "count_depths", "miss_curves"]
