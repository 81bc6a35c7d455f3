"""`EngineCore.sleep`: refuse to free a paged engine's memory, before anything is paused.

Why: a server started without `--enable-sleep-mode`, which is refused, takes the call all the same. It pauses, frees
nothing, and at level 2 copies the slots to host memory that nobody has counted.
What: raises `UnsupportedError` for level 1 and above where wisp is configured; otherwise calls the original.
Versions: 0.32. Ends when: slots and backing stores can sleep.
"""

from functools import wraps
from typing import Any

from wisp.errors import UnsupportedError


def install() -> None:
    """Wrap the method once."""
    from vllm.v1.engine.core import EngineCore

    from wisp.engines.vllm.settings import WispSettings

    original = EngineCore.sleep

    @wraps(original)
    def sleep(self: Any, level: int = 1, *args: Any, **kwargs: Any) -> Any:
        if level >= 1 and WispSettings.of(self.vllm_config) is not None:
            raise UnsupportedError(
                f"sleep at level {level} does not work with paging yet; pause at level 0, or end the server"
            )
        return original(self, level, *args, **kwargs)

    EngineCore.sleep = sleep
