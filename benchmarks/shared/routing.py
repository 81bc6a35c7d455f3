"""Routing with the locality of a real model, replayed inside the engine: every arm sees the same experts.

The generator draws, for each step, layer and stream, `top_k` distinct experts: each expert of the step before stays
with probability `stay`; the others come from a Zipf popularity (one order a layer, shared by its streams), raised
for experts of the last eight steps. What it achieves is measured and belongs to a benchmark's result.
"""

from dataclasses import asdict, dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingStrategy

STRATEGY = "wisp_trace"
"""For vLLM's VLLM_MOE_ROUTING_SIMULATION_STRATEGY."""


@dataclass(frozen=True)
class Locality:
    """Parameters of the generator."""

    stay: float = 0.452
    zipf: float = 1.1
    recent_bonus: float = 0.9
    """Added to the logarithm of the popularity of an expert used two to eight steps ago."""
    seed: int = 1


def generate(steps: int, layers: int, streams: int, experts: int, top_k: int, locality: Locality) -> NDArray[np.int32]:
    """int32 [steps, layers, streams, top_k]."""
    rng = np.random.default_rng(locality.seed)
    rank = np.argsort(rng.random((layers, 1, experts)), axis=-1)
    popularity = -locality.zipf * np.log1p(rank)
    last_used = np.full((layers, streams, experts), -100)
    ids = np.empty((steps, layers, streams, top_k), dtype=np.int32)
    for step in range(steps):
        score = popularity + rng.gumbel(size=(layers, streams, experts))
        age = step - last_used
        score = np.where((age >= 2) & (age <= 8), score + locality.recent_bonus, score)
        stays = rng.random((layers, streams, experts)) < locality.stay
        score = np.where(age == 1, np.where(stays, np.inf, -np.inf), score)
        chosen = np.argpartition(-score, top_k, axis=-1)[..., :top_k]
        np.put_along_axis(last_used, chosen, step, axis=-1)
        ids[step] = chosen
    return ids


def statistics(ids: NDArray[np.int32]) -> dict[str, float]:
    """What the routing repeats: from the step before, within eight steps; distinct experts of a step of all streams."""
    steps, layers, streams, _ = ids.shape
    used = np.zeros((steps, layers, streams, int(ids.max()) + 1), dtype=bool)
    np.put_along_axis(used, ids, True, axis=-1)
    references = used[8:].sum()
    before = (used[8:] & used[7:-1]).sum()
    window = np.zeros_like(used[8:])
    for back in range(1, 9):
        window |= used[8 - back : steps - back]
    return {
        "repeat_from_step_before": float(before / references),
        "repeat_within_8_steps": float((used[8:] & window).sum() / references),
        "distinct_experts_a_step": float(used.any(axis=2).sum(axis=-1).mean()),
    }


@triton.jit
def _replay(trace, clock, ids, tokens, layer, steps, layers, streams, TOP_K: tl.constexpr, PADDED: tl.constexpr):  # noqa: N803
    token = tl.program_id(0)
    now = tl.load(clock)
    # a decode step has a token a stream; a prefill's tokens are the steps of stream 0
    is_decode = tokens <= streams
    step = tl.where(is_decode, now, now + token) % steps
    stream = tl.where(is_decode, token, 0)
    choice = tl.arange(0, PADDED)
    row = trace + ((step * layers + layer) * streams + stream) * TOP_K
    tl.store(ids + token * TOP_K + choice, tl.load(row + choice, mask=choice < TOP_K), mask=choice < TOP_K)


class TraceRouting(RoutingStrategy):
    """Routes each step as the trace says; layers are told apart by the order of their calls."""

    def __init__(self, trace: NDArray[np.int32]) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._trace = torch.from_numpy(trace).to(device)
        self._clock = torch.zeros(1, dtype=torch.int64, device=device)
        self._calls = 0

    def route_tokens(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        top_k: int,
        indices_type: torch.dtype | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """On a GPU one kernel; inside a CUDA graph the clock advances with every replay."""
        layer = self._calls % self._trace.shape[1]
        self._calls += 1
        if layer == 0:
            self._clock.add_(1)
        tokens, device = hidden_states.shape[0], hidden_states.device
        ids = torch.empty((tokens, top_k), dtype=indices_type or torch.int32, device=device)
        if device.type == "cuda":
            self._launch(ids, layer)
        else:
            ids.copy_(self._look_up(tokens, layer))
        weights = torch.full((tokens, top_k), 1.0 / top_k, dtype=torch.float32, device=device)
        return weights, ids

    def _launch(self, ids: torch.Tensor, layer: int) -> None:
        steps, layers, streams, _ = self._trace.shape
        tokens, top_k = ids.shape
        padded = triton.next_power_of_2(top_k)
        _replay[(tokens,)](
            self._trace, self._clock, ids, tokens, layer, steps, layers, streams, TOP_K=top_k, PADDED=padded
        )

    def _look_up(self, tokens: int, layer: int) -> torch.Tensor:
        """What `_replay` writes, without a GPU."""
        steps, _, streams, _ = self._trace.shape
        order = torch.arange(tokens)
        if tokens <= streams:
            return self._trace[int(self._clock) % steps, layer, order]
        return self._trace[(int(self._clock) + order) % steps, layer, 0]


def describe(locality: Locality, ids: NDArray[np.int32]) -> dict[str, object]:
    """For a result: the generator's parameters and what it achieved."""
    return {"generator": asdict(locality), "steps": ids.shape[0], "streams": ids.shape[2], **statistics(ids)}
