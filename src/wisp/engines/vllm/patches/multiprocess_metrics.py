"""`prometheus_client.multiprocess.MultiProcessCollector`: let our collector join each registry that it joins.

Why: with several API servers (PROMETHEUS_MULTIPROC_DIR) vLLM answers each scrape from a fresh registry that holds
this one collector, and nothing that was registered before.
What: calls the original, then registers our collector in the same registry. Installed where paging is on.
Versions: 0.32. Ends when: vLLM lets plug-ins add collectors to its /metrics.
"""

from functools import wraps
from typing import Any

from prometheus_client.registry import Collector


def install(collector: Collector) -> None:
    """Wrap the constructor; called once in an API server."""
    from prometheus_client.multiprocess import MultiProcessCollector

    original = MultiProcessCollector.__init__

    @wraps(original)
    def init(self: Any, registry: Any, *args: Any, **kwargs: Any) -> None:
        original(self, registry, *args, **kwargs)  # type: ignore[no-untyped-call]
        if registry is not None:
            registry.register(collector)

    MultiProcessCollector.__init__ = init  # type: ignore[method-assign]
