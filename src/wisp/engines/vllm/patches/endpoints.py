"""`vllm.plugins.load_endpoint_plugins`: add our own endpoint.

Why: vLLM loads endpoint plug-ins only if they are named in VLLM_PLUGINS, which then is the list of all plug-ins that
may load, of whatever kind. Whoever sets `recordable` or `measure` has asked for this one already.
What: calls the original and adds ours to its list. Installed where one of the two is set only.
Versions: 0.32. Ends when: an endpoint plug-in can be asked for by itself.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

_make: Callable[[], Any] | None = None


def install(make: Callable[[], Any]) -> None:
    """Wrap the function once; whatever was given last makes our endpoint."""
    global _make
    is_installed, _make = _make is not None, make
    if is_installed:
        return
    from vllm import plugins

    original = plugins.load_endpoint_plugins

    @wraps(original)
    def load_endpoint_plugins(*args: Any, **kwargs: Any) -> list[Any]:
        assert _make is not None
        return [*original(*args, **kwargs), _make()]

    plugins.load_endpoint_plugins = load_endpoint_plugins
