"""What one of vLLM's workers has of ours, found from the worker itself."""

from typing import Any

from wisp.engines.vllm import workers
from wisp.engines.vllm.paging import WorkerPaging
from wisp.engines.vllm.taps.device_routing import DeviceRouting
from wisp.engines.vllm.taps.routing_source import HostRouting, RoutingSource
from wisp.errors import UnsupportedError


def is_first_rank(worker: Any) -> bool:
    """Whether it speaks for its pipeline stage: tensor-parallel ranks route alike."""
    ranks: int = worker.vllm_config.parallel_config.tensor_parallel_size
    return bool(worker.rank % ranks == 0)


def paging_of(worker: Any) -> WorkerPaging:
    """Its paged layers.

    Raises:
        UnsupportedError: it has none, or knows some of the experts alone.
    """
    if worker.vllm_config.parallel_config.enable_expert_parallel:
        raise UnsupportedError(
            "with --enable-expert-parallel a rank knows the routing to its own experts alone, which cannot be put "
            "together yet; leave it out: routing does not depend on it"
        )
    paging = workers.of_engine(worker.vllm_config)
    if paging is None:
        raise UnsupportedError("this engine pages nothing, so there is no routing to read; set expert_slots")
    return paging


def source_of(paging: WorkerPaging) -> RoutingSource:
    """Its routing, from the next step on.

    Raises:
        UnsupportedError: every expert has a slot, and the engine's kernel was left alone.
    """
    if paging.in_graph is not None:
        return DeviceRouting(paging.in_graph.state.routing(), paging.in_graph.state.ring.steps)
    if not paging.pagers:
        raise UnsupportedError(
            "every expert has a slot, so that nothing is paged and no routing is followed; set recordable to true"
        )
    return HostRouting([paging.pagers[place] for place in range(len(paging.layers))])
