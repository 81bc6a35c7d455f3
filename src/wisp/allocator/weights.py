"""The weights of a model, summed up by kind: bytes in the format they are stored in, and parameters."""

from collections.abc import Mapping
from typing import Any

from wisp.allocator.token_mixer import Attention, Matrix, StateSpace
from wisp.allocator.weight_format import WeightFormat, is_kept_plain, plain_format, quantised_format


class Weights:
    """A ledger: bytes by kind, and parameters."""

    def __init__(self, plain: WeightFormat, packed: WeightFormat, plain_kinds: tuple[str, ...]) -> None:
        self.plain, self.packed, self._plain_kinds = plain, packed, plain_kinds
        self.by_kind: dict[str, int] = {}
        self.parameters = 0

    @classmethod
    def of(cls, config: Mapping[str, Any], text: Mapping[str, Any]) -> "Weights":
        """An empty ledger for the formats that a configuration and its text part name."""
        plain = plain_format(text if text.get("torch_dtype") or text.get("dtype") else config)
        quantisation = config.get("quantization_config") or text.get("quantization_config")
        if not quantisation:
            return cls(plain, plain, ())
        kinds = {"attention": "attn", "shared experts": "shared_expert", "dense layers": "mlp.down_proj"}
        kept = tuple(kind for kind, module in kinds.items() if is_kept_plain(quantisation, module))
        return cls(plain, quantised_format(quantisation), kept)

    def add(self, kind: str, matrices: tuple[Matrix, ...], times: int) -> None:
        """Count linear layers, in the packed format unless this kind is kept plain."""
        weight_format = self.plain if kind in self._plain_kinds else self.packed
        total = times * sum(weight_format.matrix_bytes(*matrix) for matrix in matrices)
        self.by_kind[kind] = self.by_kind.get(kind, 0) + total
        self.parameters += times * count(matrices)

    def add_plain(self, kind: str, parameters: int, *, is_copy: bool = False) -> None:
        """Count what no format packs; a copy adds bytes but no parameters."""
        self.by_kind[kind] = self.by_kind.get(kind, 0) + parameters * self.plain.weight_bits // 8
        self.parameters += 0 if is_copy else parameters


def add_mixers(
    weights: Weights, attention: Attention, attention_layers: int, state_space: StateSpace | None, state_layers: int
) -> None:
    """Attention and, in a hybrid, state-space layers."""
    weights.add("attention", attention.matrices, attention_layers)
    weights.add_plain("attention", attention_layers * count(attention.unpacked_matrices), is_copy=True)
    if state_space:
        weights.add("state-space layers", state_space.matrices, state_layers)
        weights.add_plain("state-space layers", state_layers * state_space.plain_parameters)


def add_mlps(weights: Weights, text: Mapping[str, Any], dense_layers: int, moe_layers: int) -> None:
    """What every token passes beside routed experts: dense layers and shared experts."""
    hidden = int(text["hidden_size"])
    if dense_layers:
        weights.add("dense layers", mlp(hidden, int(text["intermediate_size"])), dense_layers)
    shared = int(text.get("n_shared_experts") or 0) * int(text.get("moe_intermediate_size") or 0)
    shared = shared or int(text.get("shared_expert_intermediate_size") or 0)
    if shared:
        weights.add("shared experts", mlp(hidden, shared), moe_layers)


def add_rest(weights: Weights, config: Mapping[str, Any], text: Mapping[str, Any], norms: int, routers: int) -> None:
    """Embeddings, routers, norms, and a vision tower if there is one (its projector left out: about 1 % of it)."""
    table = int(text["vocab_size"]) * int(text["hidden_size"])
    is_tied = bool(text.get("tie_word_embeddings", False))
    if not is_tied:
        weights.add_plain("input embeddings", table)
    weights.add_plain("output embeddings", table)
    weights.add_plain("routers and norms", norms + routers)
    vision = config.get("vision_config")
    if vision and vision.get("hidden_size"):
        width = int(vision["hidden_size"])
        inner = int(vision.get("intermediate_size") or 4 * width)
        weights.add_plain("vision", int(vision.get("num_hidden_layers", 0)) * (4 * width * width + 2 * width * inner))


def mlp(hidden: int, width: int) -> tuple[Matrix, ...]:
    """Gate, up and down projection of a gated feed-forward network."""
    return ((width, hidden), (width, hidden), (hidden, width))


def count(matrices: tuple[Matrix, ...]) -> int:
    """Parameters of these matrices."""
    return sum(rows * columns for rows, columns in matrices)
