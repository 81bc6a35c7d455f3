"""What a started engine knows of itself, in place of what a configuration lets one reckon."""

from collections.abc import Mapping
from dataclasses import dataclass

from wisp.allocator.kv_layout import KvLayout


@dataclass(frozen=True)
class EngineFacts:
    """Of one rank, measured once the model is loaded with few slots."""

    slot_bytes: int
    """One slot in every MoE layer, padding included."""
    layout: KvLayout
    fixed: Mapping[str, int]
    """What is neither slots nor KV, by kind; nothing on a CPU, where the budget is for those two alone."""
