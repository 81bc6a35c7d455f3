"""`VllmConfig.compute_hash`: find compiled code again whatever the wisp settings are.

Why: vLLM keeps what torch.compile made under a hash of the whole configuration. Paging is opaque to the compiler, so
that one more slot would mean a minute of compiling the same code again; and code compiled twice may differ in its last
bits, since the compiler measures variants of a kernel and takes the fastest.
What: computes the hash of a copy without our settings. On a GPU that is the hash of the unpaged engine. On a CPU the
compiled code calls our op, and a mark in place of the settings tells it from the unpaged engine's. vLLM makes two other
things of the hash: `system_fingerprint` in its answers, which no longer tells settings apart, and the KV size kept by
VLLM_ENABLE_STARTUP_PLAN, which depends on them and is refused (`checks.py`).
Versions: 0.32. Ends when: vLLM lets plug-ins say which of their settings change the compiled code.
"""

import copy
from functools import wraps
from typing import Any

KEY = "wisp"


def install() -> None:
    """Wrap the method once."""
    from vllm.config import VllmConfig

    original = VllmConfig.compute_hash

    @wraps(original)
    def compute_hash(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(_without_settings(self), *args, **kwargs)

    VllmConfig.compute_hash = compute_hash


def _without_settings(vllm_config: Any) -> Any:
    from vllm.platforms import current_platform

    additional = vllm_config.additional_config
    if not isinstance(additional, dict) or KEY not in additional:
        return vllm_config
    like = copy.copy(vllm_config)
    like.additional_config = {name: value for name, value in additional.items() if name != KEY}
    if current_platform.is_cpu():
        like.additional_config[KEY] = "paged"
    return like
