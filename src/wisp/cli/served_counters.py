"""The counters of a running server, read from its /metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wisp import __version__
from wisp.cli.server import reaching
from wisp.engines.vllm.counters.collector import COUNTERS, GAUGES, INFO
from wisp.errors import StatsError
from wisp.pager.counters import hit_ratio, over_ranks

TIMEOUT_SECONDS = 10.0

Fields = dict[str, float]


@dataclass(frozen=True)
class ServedCounters:
    """What one scrape says. Fields are named as in `wisp.pager.counters.FIELDS`."""

    layers: Mapping[str, Fields]
    """Layer -> its counters over the ranks that have it; see `wisp.pager.counters.over_ranks`."""
    facts: Fields
    """What the pools of the first rank are like, by the names of `collector.GAUGES`; the layers are those of all."""
    ranks: int
    """Whose counters these are: all of the engine's on the server's own machine."""
    kernel: str
    device: str

    @property
    def total(self) -> Fields:
        """The counters summed over the layers."""
        return {field: sum(layer[field] for layer in self.layers.values()) for field in COUNTERS}

    @property
    def hit_ratio(self) -> float:
        """Share of referenced experts that were resident."""
        return hit_ratio(self.total)


def scrape(url: str) -> ServedCounters:
    """Read the counters of the server at `url` (its root, its /v1 or its /metrics).

    Raises:
        ServerError: it does not answer. StatsError: it has none, or of another form.
    """
    import httpx

    root = server_root(url)
    with reaching(root):
        response = httpx.get(f"{root}/metrics", timeout=TIMEOUT_SECONDS, follow_redirects=True)
    if response.status_code != 200:
        raise StatsError(
            f"{root}/metrics answers {response.status_code}; name the root of a vLLM server, as in "
            f"http://localhost:8000"
        )
    return parse(response.text, root)


def server_root(url: str) -> str:
    """`localhost:8000/v1/` -> `http://localhost:8000`."""
    with_scheme = url if "://" in url else f"http://{url}"
    return with_scheme.rstrip("/").removesuffix("/metrics").removesuffix("/v1").rstrip("/")


def parse(text: str, source: str) -> ServedCounters:
    """Read Prometheus text; `source` names the server in errors."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        families = {family.name: family for family in text_string_to_metric_families(text)}
    except (ValueError, KeyError, IndexError) as error:
        raise StatsError(f"{source}/metrics is not Prometheus text ({error}); is a vLLM server there?") from error
    if INFO.name not in families:
        if any(name.startswith("vllm:") for name in families):
            raise StatsError(
                f"the vLLM server at {source} does not page experts; start it with `wisp serve MODEL --expert-slots N`"
            )
        raise StatsError(f"{source}/metrics has no wisp_* metrics; name the server that `wisp serve` runs")
    try:
        return _counters(families)
    except (KeyError, IndexError) as error:
        raise StatsError(
            f"{source}/metrics has wisp_* metrics of another form than wisp {__version__} knows "
            f"({type(error).__name__}: {error}); run the same version of wisp here as in the server"
        ) from error


def _counters(families: Mapping[str, Any]) -> ServedCounters:
    facts = {field: families[description.name].samples[0].value for field, description in GAUGES.items()}
    found: dict[str, dict[str, list[float]]] = {}
    for field, description in COUNTERS.items():
        for sample in families[description.name].samples:
            if not sample.name.endswith("_total"):  # when the series began, which some clients add
                continue
            found.setdefault(sample.labels["layer"], {}).setdefault(field, []).append(sample.value)
    divided = facts["expert_ranks"] > 1
    layers = {
        name: {field: over_ranks(field, fields.get(field, [0.0]), experts_divided=divided) for field in COUNTERS}
        for name, fields in found.items()
    }
    facts["layers"] = float(len(layers))  # a stage of a pipeline has some of them only
    ranks = families[INFO.name].samples
    return ServedCounters(layers, facts, len(ranks), ranks[0].labels["kernel"], ranks[0].labels["device"])
