"""The `config.json` of a model that a command names, be it a path or a model on a hub that was downloaded before."""

import os
from pathlib import Path

from wisp.cli.checkpoint import local_folder
from wisp.errors import NotDownloadedError


def config_of(model: str) -> Path:
    """What to read for `model`: the path, which may be missing, or the downloaded file. Nothing is downloaded here.

    Raises:
        NotDownloadedError: it reads like the name of a model on a hub, and its configuration was not downloaded.
    """
    path = local_folder(model)
    if path is not None:
        return path
    kept = _cache() / f"models--{model.replace('/', '--')}"
    main = kept / "refs" / "main"
    if main.is_file():
        config = kept / "snapshots" / main.read_text().strip() / "config.json"
        if config.is_file():
            return config
    raise NotDownloadedError(
        f"there is no {model} here, and no downloaded config.json of a model of that name; download it with "
        f"`hf download {model} config.json` and do this again, or name a config.json or the folder that holds one"
    )


def _cache() -> Path:
    """Where Hugging Face's libraries keep models, by the variables that they read."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return Path(os.path.expandvars(named)).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(os.path.expandvars(home)).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface" / "hub"
