"""What a plan has to know of a model, from its `config.json` alone: no weights, no engine."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wisp.allocator.expert_layers import expert_layers
from wisp.allocator.token_mixer import attention_of, state_space_of
from wisp.allocator.weight_format import WeightFormat
from wisp.allocator.weights import Weights, add_mixers, add_mlps, add_rest, count, mlp
from wisp.errors import CheckpointError, UnsupportedError
from wisp.units import format_bytes

CHECKED_TYPES = (
    "deepseek_v2",
    "deepseek_v3",
    "jamba",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "qwen2_moe",
    "qwen3_moe",
)
"""Model types whose sizes are tested against what their authors publish; others are read the same way, with a note."""

EXPERT_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
"""What configurations call the number of routed experts in a layer."""

_TOP_K = ("num_experts_per_tok", "moe_top_k", "num_experts_per_token")
_WITH_EXPERT_BIASES = ("gpt_oss",)
_PLAIN_BYTES = 2
"""KV and states are kept in 16 bits unless `--kv-cache-dtype` says otherwise."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of one model; every `_bytes` is of the stored format, scales included."""

    model_type: str
    layers: int
    moe_layers: int
    num_experts: int
    """Routed experts of each MoE layer."""
    top_k: int
    hidden: int
    expert_intermediate: int
    expert_bytes: int
    """One routed expert in one layer, padded as its kernel wants it where that is known (`WeightFormat.tiles`)."""
    weight_bytes: Mapping[str, int]
    """What is always resident, by kind."""
    parameters: int
    active_parameters: int
    """Parameters that one token is multiplied with, the embeddings apart."""
    attention_layers: int
    kv_values_a_token: int
    """Values a token keeps in one attention layer."""
    has_latent_kv: bool
    state_layers: int
    state_bytes: int
    """State of one sequence in one state-space layer."""
    expert_format: WeightFormat
    longest_context: int | None
    """`max_position_embeddings`, where nothing extends it."""
    notes: tuple[str, ...] = field(default=())
    """What was assumed."""

    @property
    def slot_bytes(self) -> int:
        """One slot in every MoE layer: `a` of the paper."""
        return self.moe_layers * self.expert_bytes

    @property
    def other_weight_bytes(self) -> int:
        """All weights that are not routed experts."""
        return sum(self.weight_bytes.values())

    @property
    def total_weight_bytes(self) -> int:
        """The whole model."""
        return self.other_weight_bytes + self.num_experts * self.slot_bytes

    @property
    def decode_weight_bytes(self) -> int:
        """What a decode step reads beside routed experts: neither the table of input embeddings nor a vision tower."""
        unread = ("input embeddings", "vision")
        return sum(count for kind, count in self.weight_bytes.items() if kind not in unread)

    def kv_bytes_a_token(self, value_bytes: int = _PLAIN_BYTES) -> int:
        """KV of one token over all attention layers."""
        return self.attention_layers * self.kv_values_a_token * value_bytes

    def __str__(self) -> str:
        return (
            f"{self.model_type}, {self.moe_layers} MoE layers of {self.num_experts} experts of "
            f"{format_bytes(self.expert_bytes)} ({self.expert_format.name}), top-{self.top_k}"
        )


def read_model_shape(path: str | Path) -> ModelShape:
    """The shape of the model in this folder, or of this `config.json`.

    Raises:
        CheckpointError: there is no readable configuration. UnsupportedError: see `model_shape`.
    """
    path = Path(path).expanduser()
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"there is no {file}; name a config.json, or the folder that holds one") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}); copy it again from where it came from") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} holds no JSON object; copy it again from where it came from")
    try:
        return model_shape(config)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else f"holds a value that makes no sense ({error})"
        raise CheckpointError(f"{file} {what}; copy it again from where it came from") from error


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape that a Hugging Face configuration describes; that of its text part, if it has several.

    Raises:
        UnsupportedError: no routed experts, a quantisation or a kind of layer whose bytes would be a guess.
        KeyError, ValueError, TypeError: a number is missing, or none that a model can have.
    """
    text = next((config[key] for key in ("text_config", "language_config", "llm_config") if key in config), config)
    model_type = str(text.get("model_type") or config.get("model_type") or "unknown")
    experts = int(_first(text, EXPERT_COUNTS, 0))
    moe_layers = len(expert_layers(text.get, int(text["num_hidden_layers"])))
    if experts < 2 or not moe_layers:
        raise UnsupportedError(
            f"{model_type} has no routed experts, so there is nothing to split; serve it without wisp"
        )
    _refuse_other_hybrids(text, model_type)
    layers, hidden, top_k = int(text["num_hidden_layers"]), int(text["hidden_size"]), int(_first(text, _TOP_K))
    width = int(text.get("moe_intermediate_size") or text["intermediate_size"])
    if not 1 <= top_k <= experts:
        raise ValueError(f"top-{top_k} of {experts} experts")
    if hidden < 1 or width < 1:
        raise ValueError(f"experts of {hidden} x {width} weights")
    longest = text.get("max_position_embeddings")
    weights = Weights.of(config, text)
    expert = mlp(hidden, width)
    attention_layers = _attention_layers(text, model_type)
    attention, state_space = attention_of(text), state_space_of(text) if model_type == "jamba" else None
    add_mixers(weights, attention, attention_layers, state_space, layers - attention_layers)
    add_mlps(weights, text, layers - moe_layers, moe_layers)
    active = weights.parameters + top_k * moe_layers * count(expert)
    add_rest(weights, config, text, hidden * (4 * layers + 1), moe_layers * experts * hidden)
    return ModelShape(
        model_type=model_type,
        layers=layers,
        moe_layers=moe_layers,
        num_experts=experts,
        top_k=top_k,
        hidden=hidden,
        expert_intermediate=width,
        expert_bytes=_expert_bytes(weights, hidden, width, model_type),
        weight_bytes=weights.by_kind,
        parameters=weights.parameters + moe_layers * experts * count(expert),
        active_parameters=active,
        attention_layers=attention_layers,
        kv_values_a_token=attention.kv_values_a_token,
        has_latent_kv=attention.is_latent,
        state_layers=layers - attention_layers,
        state_bytes=state_space.state_values * _PLAIN_BYTES if state_space else 0,
        expert_format=weights.packed,
        longest_context=None if text.get("rope_scaling") or longest is None else int(longest),
        notes=_notes(text, model_type),
    )


def _expert_bytes(weights: Weights, hidden: int, width: int, model_type: str) -> int:
    """With what its kernel pads it by, and biases where there are some."""
    hidden, width = weights.packed.padded(hidden, width)
    packed = sum(weights.packed.matrix_bytes(*matrix) for matrix in mlp(hidden, width))
    biases = 2 * width + hidden if model_type in _WITH_EXPERT_BIASES else 0
    return packed + weights.plain.matrix_bytes(1, biases)


def _first(config: Mapping[str, Any], names: tuple[str, ...], *default: Any) -> Any:
    for name in names:
        if config.get(name) is not None:
            return config[name]
    if default:
        return default[0]
    raise KeyError(names[0])


def _attention_layers(text: Mapping[str, Any], model_type: str) -> int:
    layers = int(text["num_hidden_layers"])
    if model_type != "jamba":
        return layers
    period, offset = int(text["attn_layer_period"]), int(text["attn_layer_offset"])
    return sum(layer % period == offset for layer in range(layers))


def _refuse_other_hybrids(text: Mapping[str, Any], model_type: str) -> None:
    kinds = {str(kind) for kind in text.get("layer_types") or ()} - {"full_attention", "sliding_attention"}
    recurrent = any(key.startswith(("mamba", "linear_", "ssm_")) or key == "hybrid_override_pattern" for key in text)
    if model_type != "jamba" and (kinds or recurrent or 0 in (text.get("attn_type_list") or ())):
        raise UnsupportedError(
            f"{model_type} has layers that are neither full attention nor those of jamba, whose state wisp plan does "
            f"not know; set the split by hand with --expert-slots and vLLM's --kv-cache-memory-bytes"
        )


def _notes(text: Mapping[str, Any], model_type: str) -> tuple[str, ...]:
    notes = []
    if model_type not in CHECKED_TYPES:
        notes.append(f"{model_type} was read like {', '.join(CHECKED_TYPES)}, but its sizes were never checked")
    if "sliding_attention" in (text.get("layer_types") or ()):
        notes.append("layers with a sliding window are counted as full attention: KV may take less")
    return tuple(notes)
