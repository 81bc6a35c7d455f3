"""The workers' counters as Prometheus metrics, read from their files at every scrape. Knows no engine."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wisp.engines.vllm.counters.counter_files import is_draft, rank_of
from wisp.errors import StatsError
from wisp.pager.counters import Counters


@dataclass(frozen=True)
class Description:
    """A metric's name, without the `_total` that Prometheus adds to counters, and what it counts."""

    name: str
    text: str


COUNTERS: Mapping[str, Description] = {
    "steps": Description("wisp_steps", "Steps planned; one that ran in groups of tokens counts as several."),
    "references": Description("wisp_expert_references", "Distinct experts that steps needed."),
    "faults": Description("wisp_expert_faults", "Experts that were not resident when a step needed them, and loaded."),
    "bytes_moved": Description("wisp_expert_bytes_moved", "Bytes copied from the backing store into slots."),
    "evictions": Description("wisp_expert_evictions", "Experts that lost their slot."),
    "waves": Description("wisp_waves", "Waves: kernel calls, each on experts that are resident together."),
    "copy_seconds": Description("wisp_copy_seconds", "Seconds spent copying experts (on a GPU: of its stream)."),
}
"""Field of the counters file -> metric, with the labels layer and rank."""

GAUGES: Mapping[str, Description] = {
    "layers": Description("wisp_layers", "Layers whose experts are paged."),
    "experts": Description("wisp_experts", "Experts of a layer that this rank has."),
    "expert_slots": Description("wisp_expert_slots", "Experts of a layer that can be resident at a time."),
    "expert_bytes": Description("wisp_expert_bytes", "Bytes of one expert of a layer, on one rank."),
    "expert_ranks": Description(
        "wisp_expert_ranks",
        "Ranks among which a layer's experts are divided; 1 where each has a share of every expert.",
    ),
    "engine_ranks": Description("wisp_engine_ranks", "Workers of the engine in all, on this machine and others."),
    "page_locked": Description("wisp_page_locked", "1 if the backing store is page-locked host memory, else 0."),
}
"""Fact about the pools -> metric, with the label rank."""

INFO = Description("wisp_pager_info", "1; the labels say which MoE kernel computes, and on which kind of device.")


class CountersCollector(Collector):
    """Reads the files that `find_files` names; they come into being once the workers have loaded the model."""

    def __init__(self, find_files: Callable[[], list[Path]]) -> None:
        self._find_files = find_files

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: the registry then does not read files in order to register."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One family a counter and gauge, `wisp_draft_*` of a draft model; none at all while there are no files."""
        opened = list(self._opened())
        for prefix, of_draft in (("wisp_", False), ("wisp_draft_", True)):
            ranks = [(str(rank_of(path)), counters) for path, counters in opened if is_draft(path) is of_draft]
            if ranks:
                yield from _families(ranks, prefix)

    def _opened(self) -> Iterator[tuple[Path, Counters]]:
        for path in self._find_files():
            try:
                yield path, Counters.open(path)
            except StatsError:  # it is being written, or was just removed: the next scrape has it, or needs it not
                continue


def _families(ranks: Sequence[tuple[str, Counters]], prefix: str) -> Iterator[Metric]:
    """The families of these ranks, under names that begin with `prefix`."""

    def named(name: str) -> str:
        return prefix + name.removeprefix("wisp_")

    for field, description in COUNTERS.items():
        counter = CounterMetricFamily(named(description.name), description.text, labels=("layer", "rank"))
        for rank, counters in ranks:
            for index, layer in enumerate(counters.layers):
                counter.add_metric((layer, rank), counters.layer(index)[field])
        yield counter
    for field, description in GAUGES.items():
        gauge = GaugeMetricFamily(named(description.name), description.text, labels=("rank",))
        for rank, counters in ranks:
            gauge.add_metric((rank,), _facts(counters)[field])
        yield gauge
    info = GaugeMetricFamily(named(INFO.name), INFO.text, labels=("rank", "kernel", "device"))
    for rank, counters in ranks:
        info.add_metric((rank, counters.facts.kernel, counters.facts.device), 1.0)
    yield info


def _facts(counters: Counters) -> dict[str, float]:
    return {
        "layers": len(counters.layers),
        "experts": counters.facts.num_experts,
        "expert_slots": counters.facts.expert_slots,
        "expert_bytes": counters.facts.expert_bytes,
        "expert_ranks": counters.facts.expert_ranks,
        "engine_ranks": counters.facts.engine_ranks,
        "page_locked": float(counters.page_locked),
    }
