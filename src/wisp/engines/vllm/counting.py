"""What the layers of one worker have done so far, counted where other processes can read it.

Where the host decides, pagers count as they go. Where the device does, it counts by itself and is asked, by a thread
now and then, and exactly by whoever wants to know.
"""

from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch

from wisp.engines.vllm.counters import counter_files
from wisp.engines.vllm.in_graph_paging import InGraphPaging
from wisp.engines.vllm.publisher import Published, Publisher
from wisp.pager.counters import Counters, PoolFacts
from wisp.pager.routing_histogram import RoutingHistogram
from wisp.pager.store import ExpertStore

if TYPE_CHECKING:
    from vllm.config import VllmConfig


@dataclass
class Counting:
    """The counters of one worker, and how they are kept up to date."""

    vllm_config: "VllmConfig"
    is_draft: bool
    counters: Counters | None = None
    """From the first layer on that is paged."""
    routing: RoutingHistogram | None = None
    """Where the device decides, if asked to `measure`, and once the engine is warm: what steps needed, kept up by the
    publisher."""
    publisher: Publisher | None = None
    """Where the device decides."""
    publishing: Lock = field(default_factory=Lock)
    """Held while counts are read and passed on: what was read later must not be overtaken by what was read before."""

    def counters_for(self, store: ExpertStore, experts: Any, moe: Any, *, slots: int, layers: int) -> Counters:
        """The counters of so many layers, made at the first call, which is of any of them.

        `experts` is vLLM's kernel of that layer, and `moe` vLLM's configuration of it.
        """
        if self.counters is None:
            facts = PoolFacts(
                num_experts=store.num_experts,
                expert_slots=slots,
                expert_bytes=store.expert_bytes,
                kernel=type(experts).__name__,
                device=torch.device(moe.device).type,
                expert_ranks=moe.moe_parallel_config.ep_size,
                engine_ranks=self.vllm_config.parallel_config.world_size,
            )
            rank = self.vllm_config.parallel_config.rank
            path = counter_files.path_for(self.vllm_config.instance_id, rank, draft=self.is_draft)
            self.counters = Counters(facts, layers, path)
        return self.counters

    def set_slots(self, slots: int) -> None:
        """Tell readers of another number of slots."""
        assert self.counters is not None, "there since the first layer was paged"
        self.counters.set_facts(replace(self.counters.facts, expert_slots=slots))

    def start_publisher(self, worker: Published) -> None:
        """Publish what this worker's device counts, now and then, as long as the worker is there."""
        if self.publisher is None:
            self.publisher = Publisher(worker)
            self.publisher.start()

    def stop_publisher(self) -> None:
        """Return once it holds on to nothing of the worker's."""
        if self.publisher is not None:
            self.publisher.stop()
            self.publisher = None

    def publish(self, in_graph: InGraphPaging | None, *, exactly: bool) -> None:
        """Bring the counters up to date with what the device has counted, if it decides; `exactly` waits for it."""
        with self.publishing:
            if exactly and in_graph is not None:
                in_graph.state.refresh_mirror()
            if in_graph is not None and self.counters is not None:
                for row, pager in enumerate(in_graph.pagers[: len(self.counters.layers)]):
                    self.counters.put(row, **pager.totals())

    def reset(self, in_graph: InGraphPaging | None, *, measure: bool) -> None:
        """Count from zero, on the device too, if it decides; with `measure`, follow there what steps need."""
        with self.publishing:
            if in_graph is not None:
                in_graph.state.reset()
                # following the ring takes host time of its own
                self.routing = in_graph.routing_histogram() if measure else None
            if self.counters is not None:
                self.counters.reset()
