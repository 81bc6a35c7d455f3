"""What a `wisp` configuration does in vLLM's front end, before anything starts; `workers` is its like in a worker."""

import logging
from typing import TYPE_CHECKING, Any

from wisp.engines.vllm.budget.config import go_by_budget
from wisp.engines.vllm.checks import check_engine, doubts
from wisp.engines.vllm.patches import endpoints
from wisp.engines.vllm.settings import WispSettings

if TYPE_CHECKING:
    from vllm.config import VllmConfig


logger = logging.getLogger(__name__)


def prepare(engine_args: Any, vllm_config: "VllmConfig") -> None:
    """Check an engine's finished configuration, and get this process ready for what its settings ask.

    Raises:
        WispError: it cannot be paged, or contradicts the settings.
    """
    settings = WispSettings.of(vllm_config)
    if settings is None:
        return
    check_engine(vllm_config, settings)
    for doubt in doubts(vllm_config):
        logger.warning("%s", doubt)
    if settings.gpu_memory is not None:
        go_by_budget(engine_args, vllm_config, settings)
    if settings.recordable or settings.measure:
        endpoints.install(lambda: _endpoint(settings))


def _endpoint(settings: WispSettings) -> Any:
    from wisp.engines.vllm.endpoint import WispEndpoint  # for an API server alone

    return WispEndpoint(settings)
