"""What loading makes of a layer's experts."""

from typing import NamedTuple

from wisp.engines.vllm.loading.expert_tensors import ExpertTensors
from wisp.pager.store import ExpertStore


class LoadedExperts(NamedTuple):
    """One layer's experts, all in their store, and none where the engine looks for them."""

    store: ExpertStore
    tensors: ExpertTensors
    """Released, until they are bound to slots."""
