"""What a layerwise comparison says of one layer."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerResult:
    """One layer's recorded calls against the same layer computed from all of its experts."""

    layer: str
    calls: int
    identical: int
    largest_difference: float
