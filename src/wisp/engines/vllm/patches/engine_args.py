"""`EngineArgs.create_engine_config`: check the wisp configuration before anything starts.

Why: the plug-in's classes run in the workers, minutes into a start-up, and not at all for a model without
experts, where the setting would be without effect in silence. This is the first place that knows everything.
What: calls the original, then `check_engine`; where a budget is to be divided, vLLM is told to go by it; where a
setting asks for routes, prepares the API server, which is made after this and in this process. Without a `wisp`
configuration nothing is added.
Versions: 0.32. Ends when: vLLM offers plug-ins a hook on the finished configuration.
"""

from functools import wraps
from typing import Any


def install() -> None:
    """Wrap the method once."""
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.create_engine_config

    @wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        vllm_config = original(self, *args, **kwargs)
        from wisp.engines.vllm.budget.config import go_by_budget
        from wisp.engines.vllm.checks import check_engine
        from wisp.engines.vllm.settings import WispSettings

        settings = WispSettings.of(vllm_config)
        if settings is not None:
            check_engine(vllm_config, settings)
            if settings.gpu_memory is not None:
                go_by_budget(self, vllm_config, settings)
            if settings.recordable or settings.measure:
                from wisp.engines.vllm.patches import endpoints

                endpoints.install(settings)
        return vllm_config

    EngineArgs.create_engine_config = create_engine_config
