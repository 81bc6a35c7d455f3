"""The rates of one machine, measured with one model, and the file that keeps them."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from wisp.errors import ConfigError

FORMAT, VERSION = "wisp-calibration", 3

DeviceKind = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class Calibration:
    """Rates, so that they carry over to another model of the same machine; a measurement of that model is better."""

    machine: str
    """The GPU by its driver's name, such as "NVIDIA H200", or the CPU where that serves."""
    model: str
    """What was served: `str(ModelShape)`."""
    date: str
    device: DeviceKind = "cuda"
    """Whether that machine served on a GPU or on the CPU: rates of one say nothing of the other."""
    versions: Mapping[str, str] = field(default_factory=dict)
    engine: str = "CUDA graphs, decided on the device"
    """How it ran: what of its settings changes the rates."""
    fault_bytes_per_second: float = 51.0e9
    """At which a decode step's kernel reads missing experts from host memory."""
    stream_bytes_per_second: float = 55.3e9
    """At which a prefill step's copies bring in the experts without slots."""
    device_bytes_per_second: float = 3.7e12
    """At which a decode step reads weights on the device, those of routed experts apart."""
    expert_bytes_per_second: float = 3.7e12
    """At which it reads resident experts."""
    kv_bytes_per_second: float = 3.7e12
    """At which it reads KV."""
    layer_seconds: float = 47e-6
    """What a layer takes in a decode step beside reading."""
    sequence_seconds: float = 0.0
    """What each stream adds to a decode step beside reading."""
    decide_seconds: float = 1.6e-6
    """What deciding takes a MoE layer and decode step."""
    prefill_layer_seconds: float = 1.28e-3
    """What a layer takes in a prefill step at least."""
    prefill_flops_per_second: float = 3.0e14
    """At which long prefill steps compute."""
    device_bytes: int | None = None
    """The memory of the device, where known."""
    prefill: tuple[tuple[int, float], ...] = ()
    """(tokens, seconds) of single prefill steps of this very model without streaming, by ascending tokens."""
    notes: tuple[str, ...] = ()
    """What of this could not be measured as such."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """What the rates were taken from, for people to read."""

    def __post_init__(self) -> None:
        for name in ("machine", "model", "date", "engine"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ConfigError(f"a calibration has to name its {name}")
        if self.device not in get_args(DeviceKind):
            known = " or ".join(get_args(DeviceKind))
            raise ConfigError(f"the device of a calibration must be {known}, not {self.device!r}")
        for name, value in asdict(self).items():
            if name.endswith(("_seconds", "_per_second", "_bytes")):
                is_optional = (name == "device_bytes" and value is None) or (name == "sequence_seconds" and value == 0)
                if not (is_optional or _is_rate(value)):
                    raise ConfigError(f"{name} of a calibration must be a number above 0, not {value!r}")
        points = [tuple(point) for point in self.prefill]
        if not all(len(point) == 2 and all(map(_is_rate, point)) for point in points):
            raise ConfigError(f"prefill of a calibration must be pairs of tokens and seconds above 0, not {points}")
        if any(tokens >= more for (tokens, _), (more, _) in pairwise(points)):
            raise ConfigError(f"prefill of a calibration must be by ascending tokens, each once, not {points}")
        if not isinstance(self.versions, Mapping) or not all(isinstance(each, str) for each in self.versions.values()):
            raise ConfigError(f"versions of a calibration must be texts by name, not {self.versions!r}")

    def save(self, path: str | Path) -> None:
        """Write a small JSON file."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        Path(path).write_text(json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Calibration":
        """Read what `save` wrote.

        Raises:
            ConfigError: the file is missing, foreign, of a newer version, or lacks a number.
        """
        try:
            content = json.loads(Path(path).read_text())
        except FileNotFoundError:
            raise ConfigError(
                f"there is no calibration {path}; leave --calibration out to plan with stated ones"
            ) from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"the calibration {path} cannot be read ({error}); calibrate anew") from error
        return cls._parse(content, path)

    @classmethod
    def _parse(cls, content: Any, path: str | Path) -> "Calibration":
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ConfigError(f"{path} is not a calibration of wisp's (no format {FORMAT!r}); calibrate anew")
        version = content.pop("version", None)
        if version != VERSION:
            is_newer = isinstance(version, int) and version > VERSION
            remedy = "upgrade wisp-moe" if is_newer else "calibrate anew"
            raise ConfigError(f"{path} has calibration version {version} but this wisp reads {VERSION}; {remedy}")
        names = {each.name for each in fields(cls)}
        if wrong := sorted(names ^ set(content)):
            what = "lacks" if wrong[0] in names else "has an unknown"
            raise ConfigError(f"the calibration {path} {what} {wrong[0]!r}; calibrate anew")
        try:
            content["prefill"] = tuple((point[0], point[1]) for point in content["prefill"])
            content["notes"] = tuple(content["notes"])
            return cls(**content)
        except ConfigError as error:
            raise ConfigError(f"the calibration {path} is damaged: {error}; calibrate anew") from error
        except (TypeError, IndexError, ValueError, KeyError) as error:
            raise ConfigError(f"the calibration {path} is damaged ({error}); calibrate anew") from error

    def check_device(self, device: DeviceKind) -> None:
        """Raise `ConfigError` if these rates are of another kind of device."""
        if device != self.device:
            words = {"cuda": "a GPU", "cpu": "a CPU"}
            raise ConfigError(
                f"the calibration was made on {words[self.device]} ({self.machine}), which says nothing of "
                f"{words[device]}; leave it out, or give one that wisp calibrate has made on {words[device]}"
            )

    def warnings(self, machine: str | None, model: str, versions: Mapping[str, str] | None = None) -> list[str]:
        """What makes these rates doubtful for this machine (None: not known) and this model, both named.

        `versions` are those that are installed; another first or second number is told.
        """
        found = []
        if machine is not None and machine != self.machine:
            found.append(f"costs were measured on {self.machine} but this machine has {machine}")
        if model != self.model:
            found.append(f"costs were measured with {self.model}, not with {model}")
        for name, version in (versions or {}).items():
            before = self.versions.get(name)
            if before is not None and before.split(".")[:2] != version.split(".")[:2]:
                found.append(f"costs were measured with {name} {before}, but {version} is installed")
        return found


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


STATED = Calibration(
    machine="NVIDIA H200",
    model="qwen3_moe, 48 MoE layers of 128 experts of 9MiB (bf16), top-8",
    date="2026-11-30",
    versions={"vllm": "0.32.0", "torch": "2.13.0+cu130"},
)
"""What a plan takes without a calibration: PCIe 5 x16, `benchmarks/iso_vram`.

Decode: 47 us a layer and 3.7 TB/s give 3.89, 5.76 and 7.33 ms for its steps of 1, 4 and 8 streams with everything
resident, where 3.84, 6.29 and 7.28 were measured. Prefill: 48 x 1.28 ms is its 512-token prompt (63 ms with
everything resident), 4096 tokens at 3.0e14 operations a second its 4096-token one (75 ms).
"""
