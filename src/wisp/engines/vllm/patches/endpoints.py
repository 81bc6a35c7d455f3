"""`vllm.plugins.load_endpoint_plugins`: add our own endpoint.

Why: vLLM loads endpoint plug-ins only if they are named in VLLM_PLUGINS, which then is the list of all plug-ins that
may load, of whatever kind. Whoever sets `recordable` or `measure` has asked for this one already.
What: calls the original and adds ours to its list. Installed where one of the two is set only.
Versions: 0.32. Ends when: an endpoint plug-in can be asked for by itself.
"""

from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wisp.engines.vllm.settings import WispSettings

_settings: "WispSettings | None" = None


def install(settings: "WispSettings") -> None:
    """Wrap the function once; the settings of the engine made last count."""
    global _settings
    is_installed, _settings = _settings is not None, settings
    if is_installed:
        return
    from vllm import plugins

    original = plugins.load_endpoint_plugins

    @wraps(original)
    def load_endpoint_plugins(*args: Any, **kwargs: Any) -> list[Any]:
        from wisp.engines.vllm.endpoint import WispEndpoint

        assert _settings is not None
        return [*original(*args, **kwargs), WispEndpoint(_settings)]

    plugins.load_endpoint_plugins = load_endpoint_plugins
