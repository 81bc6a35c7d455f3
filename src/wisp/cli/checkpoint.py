"""A checkpoint folder, looked at without loading it: is it there, is it whole, has it experts?"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wisp.allocator.model_shape import EXPERT_COUNTS
from wisp.errors import CheckpointError, ConfigError, UnsupportedError
from wisp.units import format_bytes

WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth")
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100 << 20
"""What the safetensors format allows."""


def local_folder(model: str) -> Path | None:
    """The folder that `model` names, which may be missing; None if it reads like the name of a model on a hub.

    A hub's names are `owner/name`; one whose first part is a folder here is more likely a path with a typing error.
    """
    path = Path(model).expanduser()
    is_path = path.exists() or path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1
    return path if is_path or path.parent.is_dir() else None


def check_checkpoint(folder: Path, *, with_weights: bool = True) -> None:
    """Raise `CheckpointError` unless the folder holds a configuration and, if asked, weights of full length."""
    if not folder.is_dir():
        if folder.is_file():
            raise CheckpointError(f"{folder} is a file; name the folder of a checkpoint in the Hugging Face layout")
        raise CheckpointError(f"there is no folder {folder}; check the path, or name a model that vLLM can download")
    read_config(folder)
    if not with_weights:
        return
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        _check_shards(folder, index)
    elif not any(path for pattern in WEIGHT_FILES for path in folder.glob(pattern)):
        raise CheckpointError(
            f"{folder} holds a configuration but no weights (*.safetensors); copy them there, or add "
            f"--load-format dummy for random ones"
        )
    for path in sorted(folder.glob("*.safetensors")):
        _check_safetensors(path)


def expert_counts(config: Mapping[str, Any]) -> list[int]:
    """What the configuration, or one of its parts, such as that of the text model, says of the experts of a layer."""
    texts = [config, *(part for part in config.values() if isinstance(part, Mapping))]
    return [text[name] for text in texts for name in EXPERT_COUNTS if isinstance(text.get(name), int)]


def check_experts(folder: Path, expert_slots: int, *, option: str = "--expert-slots") -> None:
    """Raise if the model has no experts to page, or fewer than the `expert_slots` of `option` in a layer."""
    config = read_config(folder)
    counts = expert_counts(config)
    if not any(counts) and "expert" not in json.dumps(config):
        raise UnsupportedError(
            f"{folder} has no experts ({config.get('model_type', 'unknown')} is not a mixture-of-experts model), so "
            f"there is nothing to page; serve it without wisp: vllm serve {folder}"
        )
    if counts and 0 < max(counts) < expert_slots:
        raise ConfigError(
            f"{option} is {expert_slots} but a layer of {folder} has {max(counts)} experts; set it to "
            f"{max(counts)} or less, or serve without wisp"
        )


def read_config(folder: Path) -> dict[str, Any]:
    """The model's `config.json`; `CheckpointError` if it is missing or no JSON object."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} has no config.json, so it is not a checkpoint in the Hugging Face layout; name the folder that "
            f"holds config.json"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); copy it again from where it came from") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds no JSON object; copy it again from where it came from")
    return config


def _check_shards(folder: Path, index: Path) -> None:
    try:
        shards = set(json.loads(index.read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{index} cannot be read ({error}); copy it again from where it came from") from error
    missing = sorted(shard for shard in shards if not (folder / shard).is_file())
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of the {len(shards)} files that its index names, {missing[0]} first; "
            f"copy or download the rest"
        )


def _check_safetensors(path: Path) -> None:
    """Compare the file's size with what its header announces; reads the header alone."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header = file.read(header_bytes) if header_bytes <= min(size, _LONGEST_HEADER) else b""
    try:
        tensors = json.loads(header)
        end = max((tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise CheckpointError(
            f"{path} ({format_bytes(size)}) has no readable header: truncated, no safetensors file, or a pointer "
            f"file in its place; copy or download it again"
        ) from None
    announced = _LENGTH_BYTES + header_bytes + end
    if size < announced:
        raise CheckpointError(
            f"{path} is truncated: its header announces {announced} bytes but it has {size}; copy or download it again"
        )
