"""`wisp_*` in the /metrics of vLLM's server. Entry point of the `vllm.stat_logger_plugins` group.

The class is a stat logger in name only: vLLM makes one in each of its API servers, which is where /metrics is
answered. What it is told about requests it ignores; it registers a collector and sweeps up at the end.
"""

import logging
import multiprocessing
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from wisp.engines.vllm.counters import counter_files
from wisp.engines.vllm.counters.collector import CountersCollector
from wisp.engines.vllm.settings import WispSettings

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("vllm.wisp")


class WispStatLogger(AggregateStatLoggerBase):  # type: ignore[misc]  # vLLM is not typed
    """Exports the counters of this engine; does nothing where paging is off."""

    def __init__(self, vllm_config: "VllmConfig", engine_indexes: list[int] | None = None) -> None:
        self._collector: CountersCollector | None = None
        if WispSettings.of(vllm_config) is None:
            return
        instance_id = vllm_config.instance_id
        collector = CountersCollector(lambda: files_of(instance_id))
        if multiprocessing.parent_process() is not None and counter_files.owned_by_front_end() is None:
            # An API server of several has an instance id of its own, and nothing leads from it to the engine's.
            logger.warning("With several API servers /metrics has the wisp_* metrics under `wisp serve` only.")
            return
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            from wisp.engines.vllm.patches import multiprocess_metrics

            multiprocess_metrics.install(collector)
        else:
            REGISTRY.register(collector)
            weakref.finalize(self, _unregister, collector)
        weakref.finalize(self, lambda: counter_files.remove(files_of(instance_id)))

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Ignored: what is exported comes from the workers."""

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


def files_of(instance_id: str) -> list[Path]:
    """The counters of this engine, or else of the engine that this front end's first process has started."""
    if found := [*counter_files.of_engine(instance_id), *counter_files.of_engine(instance_id, draft=True)]:
        return found
    owner = counter_files.owned_by_front_end()
    return [*counter_files.of_owner(owner), *counter_files.of_owner(owner, draft=True)] if owner else []


def _unregister(collector: CountersCollector) -> None:
    REGISTRY.unregister(collector)
