"""What the paged layers of one worker share: how many slots each has, and who decides on them.

In the order of a start: `add_layer` takes a layer as it is made, `finish` once it is loaded, `page` gives it slots and
a kernel, `make_slots` changes the number of slots once a budget has been divided, and `forget_warm_up` starts cold.
Then steps run, each from a layer's kernel, and `publish` brings their counts up to date.
"""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from wisp.engines.vllm.counting import Counting
from wisp.engines.vllm.in_graph_paging import InGraphPaging
from wisp.engines.vllm.kernels.base import KernelKind, needs_planar_arena
from wisp.engines.vllm.kernels.broken_pool import BrokenPool
from wisp.engines.vllm.kernels.layer_kernels import LayerKernels, PagedLayer
from wisp.engines.vllm.layer_checks import check_in_graph, check_on_host
from wisp.engines.vllm.loading.model_loading import ModelLoading
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import UnsupportedError
from wisp.pager.counters import Counters
from wisp.pager.pager import ExpertPager
from wisp.pager.pool import SlotPool
from wisp.pager.routing_histogram import RoutingHistogram
from wisp.pager.store import ExpertStore
from wisp.policies import make_policy
from wisp.resident import ResidentSet

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class LoadedLayer(NamedTuple):
    """One layer, all of whose experts are in their store."""

    name: str
    store: ExpertStore
    module: Callable[[], Any]
    """A weak reference to the layer itself, which owns its worker."""


@dataclass
class WorkerPaging:
    """The paged layers of one worker."""

    settings: WispSettings
    vllm_config: "VllmConfig"
    loading: ModelLoading
    made: int = 0
    """How many layers there are, loaded or not."""
    layers: list[LoadedLayer] = field(default_factory=list)
    """In the order in which they were made; all of them, once the last is loaded."""
    slots: int = field(init=False)
    """Experts of each layer that can be resident; before a budget is divided, as few as can serve."""
    pagers: dict[int, ExpertPager] = field(default_factory=dict)
    """Where the host decides: by the place of the layer."""
    in_graph: InGraphPaging | None = None
    """Where the device decides."""
    kernels: LayerKernels = field(init=False)
    counting: Counting = field(init=False)
    draft: "WorkerPaging | None" = None
    """Of the draft model's layers, if it has experts: nothing is shared with them, since they run in steps of their
    own between the target's."""
    is_draft: bool = False

    def __post_init__(self) -> None:
        self.slots = self.settings.expert_slots or int(self.vllm_config.model_config.get_num_experts_per_tok())
        self.kernels = LayerKernels(self.vllm_config)
        self.counting = Counting(self.vllm_config, self.is_draft)

    @property
    def stores(self) -> list[ExpertStore]:
        """Those of the loaded layers."""
        return [layer.store for layer in self.layers]

    def add_layer(self) -> int:
        """Take up one more layer, before it is loaded; returns its place among them."""
        self.made += 1
        return self.made - 1

    def finish(self, layer: Any) -> None:
        """Take a layer whose store is full. The last one has all of them paged, in the order in which they were made.

        All stores have to be there: a kernel that reads them over the link finds them by their distance.
        """
        layers = self.loading.finish(layer, self.made)
        if not layers:
            return
        self.layers = [LoadedLayer(each.layer_name, each.store, weakref.ref(each)) for each in layers]
        for each in layers:
            each.take_slots()

    def page(self, place: int, kind: KernelKind, experts: Any, layer: Any) -> PagedLayer:
        """Give a loaded layer its slots, and the kernel that computes from them."""
        name, store, module = self.layers[place]
        assert module() is layer, "layers are loaded in the order in which they were made"
        device = torch.device(layer.moe_config.device)
        counters = self.counting.counters_for(
            store, experts, layer.moe_config, slots=self.slots, layers=len(self.layers)
        )
        if place == len(counters.layers):  # else it gets other slots
            counters.add_layer(name, page_locked=store.page_locked)
        if not self.settings.decides_on_device(device.type):
            check_on_host(kind, experts)
            pager = self.pagers[place] = self._make_pager(place, counters, device)
            return self.kernels.decided_on_host(kind, experts, pager, layer)
        if self.pages_nothing(store):
            return self.kernels.left_alone(experts, store, device)
        if self.in_graph is None:
            self.in_graph = self._make_in_graph(kind, experts, device)
            self.counting.start_publisher(self)
        return self.kernels.decided_on_device(experts, self.in_graph, place, layer)

    def _make_pager(self, place: int, counters: Counters, device: torch.device) -> ExpertPager:
        """One layer's slots, and who is in them."""
        store = self.layers[place].store
        pool = (BrokenPool if self.settings.break_expert else SlotPool)(store, self.slots, device)
        residents = ResidentSet(store.num_experts, pool.slots, make_policy(self.settings.policy))
        return ExpertPager(residents, store, pool, counters, layer=place)

    def _make_in_graph(self, kind: KernelKind, experts: Any, device: torch.device) -> InGraphPaging:
        """The slots of all layers, as long as the first one's kernel, `experts`, stands for those of all."""
        stores = self.stores
        check_in_graph(stores, kind, experts, is_draft=self.is_draft)
        torch.cuda.empty_cache()  # what the layers took while vLLM laid them out
        return InGraphPaging(
            stores,
            self.slots,
            device,
            planar=needs_planar_arena(kind, experts, stores[0]),
            most_slots=stores[0].num_experts,  # addresses are free, memory is taken as slots are asked for
            broken=self.settings.break_expert,
        )

    def make_slots(self, slots: int) -> None:
        """Give every layer so many slots; where the device decides they stay where they are, if its memory can grow.

        Otherwise, and where nothing is left to page, they are new ones at other addresses: for the start alone.

        Raises:
            ConfigError: the device has too little memory.
        """
        self.slots = slots
        if self.pages_nothing(self.layers[0].store) or not self._grow_in_place(slots):
            self._replace_slots()
        self.counting.set_slots(slots)

    def pages_nothing(self, store: ExpertStore) -> bool:
        """Whether every expert has a slot and nobody is to be told of the routing, which only paging follows."""
        settings = self.settings
        return self.slots == store.num_experts and not (
            settings.break_expert or settings.recordable or settings.measure
        )

    def _grow_in_place(self, slots: int) -> bool:
        if self.in_graph is None:
            return False
        try:
            self.in_graph.resize(slots)
        except UnsupportedError:  # a driver without mapped memory
            return False
        return True

    def _replace_slots(self) -> None:
        self.counting.stop_publisher()  # it might hold on to the arena, which would be given back at some later moment
        layers = [layer.module() for layer in self.layers]
        for layer in layers:
            layer.leave_slots()
        self.pagers.clear()
        self.in_graph = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        for layer in layers:
            layer.take_slots()

    def forget_warm_up(self) -> None:
        """Start cold, with counters at zero.

        Raises:
            CheckpointError: a backing store's file was written to since it was mapped.
        """
        for store in self.stores:
            store.check()
        for pager in self.pagers.values():
            pager.reset()
        self.counting.reset(self.in_graph, measure=self.settings.measure)
        if self.draft is not None:
            self.draft.forget_warm_up()

    @property
    def routing(self) -> RoutingHistogram | None:
        """What steps needed, where that is followed on the device."""
        return self.counting.routing

    def publish(self, *, exactly: bool = False) -> None:
        """Bring the counters up to date with what the device has counted.

        `exactly` waits for the device; otherwise the counters may be some steps behind.
        """
        self.counting.publish(self.in_graph, exactly=exactly)
        if self.draft is not None:
            self.draft.publish(exactly=exactly)
