"""`RoutedExperts.__init__`: refuse a model's own class of routed experts.

Why: vLLM looks a replacement up by the name of the class, so that a subclass (of gpt-oss, DBRX or the Transformers
backend) is built as it is; with wisp configured it would be served unpaged, in silence.
What: raises for such a class where wisp is configured, before it has created anything; calls the original otherwise.
Versions: 0.32. Ends when: those classes can be paged, or vLLM replaces subclasses too.
"""

from functools import wraps
from typing import Any


def install(paged: type) -> None:
    """Refuse all subclasses but `paged`."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    original = RoutedExperts.__init__

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if type(self) is not RoutedExperts and not isinstance(self, paged):
            _refuse_if_configured(type(self).__name__)
        original(self, *args, **kwargs)

    RoutedExperts.__init__ = __init__


def _refuse_if_configured(class_name: str) -> None:
    from vllm.config import get_current_vllm_config

    from wisp.engines.vllm import failure
    from wisp.engines.vllm.settings import WispSettings
    from wisp.errors import UnsupportedError

    vllm_config = get_current_vllm_config()
    if WispSettings.of(vllm_config) is None:
        return
    with failure.handed_over():
        raise UnsupportedError(
            f"{vllm_config.model_config.model} brings a class of experts of its own, {class_name}, which cannot be "
            f"paged yet; serve it without wisp, or leave out --model-impl transformers if you gave it"
        )
