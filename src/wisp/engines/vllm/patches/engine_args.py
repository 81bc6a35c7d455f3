"""`EngineArgs.create_engine_config`: check the wisp configuration before anything starts.

Why: the plug-in's classes run in the workers, minutes into a start-up, and not at all for a model without
experts, where the setting would be without effect in silence. This is the first place that knows everything.
What: calls the original, then what was given, with the arguments and the configuration made of them. An API server is
made after this and in this process.
Versions: 0.32. Ends when: vLLM offers plug-ins a hook on the finished configuration.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any


def install(prepare: Callable[[Any, Any], None]) -> None:
    """Wrap the method once."""
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.create_engine_config

    @wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        vllm_config = original(self, *args, **kwargs)
        prepare(self, vllm_config)
        return vllm_config

    EngineArgs.create_engine_config = create_engine_config
