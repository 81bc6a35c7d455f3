"""`vllm.plugins.load_endpoint_plugins`: add the endpoint of recordings.

Why: vLLM loads endpoint plug-ins only if they are named in VLLM_PLUGINS, which then is the list of all plug-ins that
may load, of whatever kind. Whoever sets `recordable` has asked for this one already.
What: calls the original and adds ours to its list. Installed where `recordable` is set only.
Versions: 0.32. Ends when: an endpoint plug-in can be asked for by itself.
"""

from functools import wraps
from typing import Any

_installed = False


def install() -> None:
    """Wrap the function once."""
    global _installed
    if _installed:
        return
    _installed = True
    from vllm import plugins

    original = plugins.load_endpoint_plugins

    @wraps(original)
    def load_endpoint_plugins(*args: Any, **kwargs: Any) -> list[Any]:
        from wisp.engines.vllm.recording_endpoint import RecordingEndpoint

        return [*original(*args, **kwargs), RecordingEndpoint()]

    plugins.load_endpoint_plugins = load_endpoint_plugins
