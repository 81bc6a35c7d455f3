"""`RoutedExperts.__new__`: page a model's own class of routed experts too.

Why: vLLM looks a replacement up by the name of the class, so that a subclass (of gpt-oss, DBRX or the Transformers
backend) is built as it is; with wisp configured it would be served unpaged, in silence.
What: where wisp is configured, an instance of such a class is made of a class that has the paged layer before it:
the paged layer creates, pages and runs the experts, the model's class loads them as it always does.
Versions: 0.32. Ends when: vLLM replaces subclasses too.
"""

from typing import Any

_mixed: dict[type, type] = {}
"""A model's own class -> its paged form: one for each, since vLLM compares layers by type."""


def install(paged: type) -> None:
    """Build subclasses of `RoutedExperts` with `paged` mixed in where wisp is configured."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    original = RoutedExperts.__new__

    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if cls is not RoutedExperts and not issubclass(cls, paged) and _is_configured():
            cls = _mixed[cls] if cls in _mixed else _mixed.setdefault(cls, _mix(paged, cls))
        return original(cls, *args, **kwargs)

    RoutedExperts.__new__ = staticmethod(__new__)


def _mix(paged: type, own: type) -> type:
    return type(f"Paged{own.__name__}", (paged, own), {"__doc__": f"`{own.__name__}` whose weights are slots."})


def _is_configured() -> bool:
    from vllm.config import get_current_vllm_config

    from wisp.engines.vllm import failure
    from wisp.engines.vllm.settings import WispSettings

    with failure.handed_over():
        return WispSettings.of(get_current_vllm_config()) is not None
