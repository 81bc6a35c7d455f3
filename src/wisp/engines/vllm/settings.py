"""What the user asked of paging: the `wisp` key of vLLM's `--additional-config`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from wisp.errors import ConfigError, UnknownPolicyError
from wisp.pager.host_memory import PAGE_LOCK_CHOICES, PageLock
from wisp.policies import POLICIES
from wisp.units import parse_budget

if TYPE_CHECKING:
    from vllm.config import VllmConfig

BackingStore = Literal["memory", "checkpoint"]
BACKING_STORE_CHOICES: tuple[BackingStore, ...] = ("memory", "checkpoint")
Decide = Literal["auto", "device", "host"]
DECIDE_CHOICES: tuple[Decide, ...] = ("auto", "device", "host")


@dataclass(frozen=True)
class WispSettings:
    """Checked when made; `ConfigError` says what is wrong and what would be right."""

    expert_slots: int | None = None
    """Experts of each layer that are resident at a time; None where `gpu_memory` is to be divided."""
    draft_expert_slots: int | None = None
    """The same of a draft model's layers, for speculative decoding; None takes `expert_slots`, or all of its experts
    if it has fewer."""
    gpu_memory: str | None = None
    """What the engine may take in all on the device, such as `24GiB`: divided between slots and KV at the start, or
    for KV alone where `expert_slots` is given. On a CPU it is host memory, for slots and KV."""
    conversations: int | None = None
    """Conversations that take turns, for the division of `gpu_memory`."""
    trace: str | None = None
    """File with recorded routing, for the same."""
    calibration: str | None = None
    """File with measured rates, for the same."""
    policy: str = "lru"
    page_lock: PageLock = "auto"
    backing_store: BackingStore = "memory"
    """Where all experts are: in `memory` of the engine's own, or in the files of the `checkpoint`, through the page
    cache, where these hold the bytes that the kernel takes (bf16 or fp16, unquantised)."""
    decide: Decide = "auto"
    """Where paging is decided: on the `device`, inside CUDA graphs, or on the `host`, without them. `auto` takes the
    device on a GPU with LRU, and the host otherwise."""
    host_memory: str | None = None
    """Host memory to count on, such as `100GiB`, in place of what is free now: for machines whose memory grows."""
    recordable: bool = False
    """Let clients of the server record its routing and its references to KV blocks: `wisp record URL`."""
    measure: bool = False
    """Let the server meter how deep its references to experts and KV blocks reach: `wisp stats URL --curves`."""
    unshown_formats: bool = False
    """Page formats too, by any known kernel, that no run on a GPU has shown to be identical; see formats.py."""
    break_expert: bool = False
    """Load a wrong expert now and then, on purpose: the negative control of `wisp verify`."""

    def __post_init__(self) -> None:
        self._check_size()
        draft = 1 if self.draft_expert_slots is None else self.draft_expert_slots
        if isinstance(draft, bool) or not isinstance(draft, int) or draft < 1:
            raise ConfigError(f"draft_expert_slots must be a whole number of experts, 1 or more, not {draft!r}")
        if self.policy not in POLICIES:
            raise UnknownPolicyError(self.policy, list(POLICIES))
        if self.host_memory is not None:
            parse_budget(self.host_memory, "host_memory")
        if self.backing_store not in BACKING_STORE_CHOICES:
            raise ConfigError(
                f"backing_store must be one of {', '.join(BACKING_STORE_CHOICES)}, not {self.backing_store!r}"
            )
        if self.decide not in DECIDE_CHOICES:
            raise ConfigError(f"decide must be one of {', '.join(DECIDE_CHOICES)}, not {self.decide!r}")
        if self.decide == "device" and self.policy != "lru":
            raise ConfigError(
                f"on the device only lru is decided; set decide to host for {self.policy}, or policy to lru"
            )
        for name in ("recordable", "measure", "unshown_formats", "break_expert"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, not {getattr(self, name)!r}")
        if self.page_lock not in PAGE_LOCK_CHOICES:
            raise ConfigError(f"page_lock must be one of {', '.join(PAGE_LOCK_CHOICES)}, not {self.page_lock!r}")

    def _check_size(self) -> None:
        """What says how much is resident."""
        if self.gpu_memory is not None:
            parse_budget(self.gpu_memory, "gpu_memory")
        if self.expert_slots is None:
            if self.gpu_memory is None:
                raise ConfigError(
                    "the wisp configuration lacks expert_slots, the experts of each layer to keep resident, and "
                    "gpu_memory, such as 24GiB, to divide between experts and KV; give one of them"
                )
        elif isinstance(self.expert_slots, bool) or not isinstance(self.expert_slots, int):
            raise ConfigError(f"expert_slots must be a whole number of experts, not {self.expert_slots!r}")
        elif self.expert_slots < 1:
            raise ConfigError(f"expert_slots must be 1 or more, not {self.expert_slots}")
        for name in ("conversations", "trace", "calibration"):
            value = getattr(self, name)
            if value is None:
                continue
            if not self.plans:
                raise ConfigError(f"{name} is for the division of gpu_memory, which is not asked for; leave it out")
            if name == "conversations":
                what, is_right = "a number of 1 or more", type(value) is int and value >= 1
            else:
                what, is_right = "the name of a file", isinstance(value, str) and value != ""
            if not is_right:
                raise ConfigError(f"{name} must be {what}, not {value!r}")

    @property
    def gpu_memory_bytes(self) -> int | None:
        """The budget; None without one."""
        return None if self.gpu_memory is None else parse_budget(self.gpu_memory, "gpu_memory")

    @property
    def plans(self) -> bool:
        """Whether the slots are chosen at the start, once the engine has measured what else it takes."""
        return self.expert_slots is None

    @classmethod
    def parse(cls, raw: object) -> "WispSettings":
        """Read the value of the `wisp` key, a mapping such as `{"expert_slots": 16}`."""
        if not isinstance(raw, Mapping):
            raise ConfigError(f"the wisp configuration must be an object such as {{'expert_slots': 16}}, not {raw!r}")
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(raw) - known, key=str):
            raise ConfigError(f"unknown wisp setting {unknown[0]!r}; known are {', '.join(sorted(known))}")
        if raw.get("expert_slots", 0) is None:
            raise ConfigError("expert_slots must be a whole number of experts, not None")
        return cls(**raw)

    @classmethod
    def of(cls, vllm_config: "VllmConfig") -> "WispSettings | None":
        """The settings of this engine; None where paging is off."""
        extra: Any = vllm_config.additional_config
        if not isinstance(extra, Mapping):
            return None
        _check_other_keys(extra)
        return cls.parse(extra["wisp"]) if "wisp" in extra else None

    def decides_on_device(self, device_type: str) -> bool:
        """Whether paging is decided on a device of this type; `ConfigError` if it was asked for and cannot be."""
        if self.decide == "device" and device_type != "cuda":
            raise ConfigError(f"decide is set to device, but the engine runs on {device_type}; set it to auto or host")
        return device_type == "cuda" and self.decide != "host" and self.policy == "lru"

    def for_draft(self, num_experts: int) -> "WispSettings":
        """As they hold for a draft model's layers of so many experts."""
        return replace(self, expert_slots=self.draft_expert_slots or min(self.expert_slots or num_experts, num_experts))

    def check_model(self, num_experts: int, top_k: int, *, waves_by_expert: bool, ranks: int = 1) -> None:
        """Compare the slots with a model's experts; `waves_by_expert` says what its kernel allows below top-k.

        `num_experts` are those of one rank, where the experts of a layer are divided among `ranks`.
        """
        if self.expert_slots is None:
            return
        if self.expert_slots > num_experts:
            divided = f" on each of {ranks} ranks" if ranks > 1 else ""
            raise ConfigError(
                f"expert_slots is {self.expert_slots} but a layer of this model has {num_experts} experts{divided}; "
                f"set it to {num_experts} or less, or serve without wisp"
            )
        if self.expert_slots < top_k and not waves_by_expert:
            raise ConfigError(
                f"expert_slots is {self.expert_slots} but a token of this model needs {top_k} experts at once, and "
                f"this MoE kernel cannot compute a token in parts; set expert_slots to {top_k} or more"
            )


def _check_other_keys(extra: Mapping[Any, Any]) -> None:
    """Refuse a misspelled `wisp` key, and the size of what is resident outside it: vLLM would serve unpaged in silence.

    Other plug-ins have keys of their own beside it.
    """
    for key in map(str, extra):
        if key in ("expert_slots", "gpu_memory") and "wisp" not in extra:
            raise ConfigError(
                f'{key} stands in the additional configuration by itself; write {{"wisp": {{"{key}": ...}}}}'
            )
        if key != "wisp" and (key.lower().startswith("wisp") or get_close_matches(key.lower(), ["wisp"], cutoff=0.75)):
            raise ConfigError(f"the additional configuration has the key {key!r}; wisp reads 'wisp', spelled so")
