"""What a trace says about its working set: stack distances, miss curves, footprints; in bulk and online."""

from wisp.workingset.blocks import BlockHistogram
from wisp.workingset.curve import MissCurve, miss_curves
from wisp.workingset.histogram import ExpertHistogram
from wisp.workingset.kv_reuse import KvReuse, by_turn
from wisp.workingset.stack import COLD, DepthCounts, LRUStack, count_depths

__all__ = [
    "COLD",
    "BlockHistogram",
    "DepthCounts",
    "ExpertHistogram",
    "KvReuse",
    "LRUStack",
    "MissCurve",
    "by_turn",
    "count_depths",
    "miss_curves",
]
