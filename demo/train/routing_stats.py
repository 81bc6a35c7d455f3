"""Measure the demo model's routing on held-out text and print it as the tables of ../README.md.

    python demo/train/routing_stats.py --corpus DIR [--model demo/model] [--out demo/train/routing.json]

One token is one step, as in decoding a single request: the model reads held-out conversations (teacher forcing: the
text decides the next token, not the model), and the experts that each layer's router picks for a token are its step. A
session is 1024 consecutive tokens. Everything but the choice of text is computed with wisp's own modules.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from wisp.simulate import simulate
from wisp.trace import RoutingTrace
from wisp.workingset.curve import MissCurve, miss_curves
from wisp.workingset.footprint import burst_footprints, cumulative_footprint, overlap, reuse_share

DOMAINS = ("python", "prose", "shell")
SESSION, BURST, CAPACITIES = 1024, 64, (4, 8, 16, 24)
TOP_EXPERTS = 8  # a quarter of the experts: compared between domains

Membership = NDArray[np.bool_]


def record(model: torch.nn.Module, tokens: NDArray[np.int64]) -> Membership:
    """bool [layers, steps, experts]: the experts that every layer picks for every token of one session."""
    experts = model.config.num_experts
    layers: list[Membership] = []

    def keep(_module: object, _inputs: object, output: tuple[torch.Tensor, ...]) -> None:
        chosen = output[2].numpy()
        member = np.zeros((len(chosen), experts), np.bool_)
        np.put_along_axis(member, chosen, True, axis=1)
        layers.append(member)

    hooks = [layer.mlp.gate.register_forward_hook(keep) for layer in model.model.layers]
    try:
        with torch.inference_mode():
            model(torch.from_numpy(tokens)[None])
    finally:
        for hook in hooks:
            hook.remove()
    return np.stack(layers)


def over_layers(trace: RoutingTrace, measure: Callable[[RoutingTrace, int], float]) -> float:
    """The mean of `measure` over the layers."""
    return float(np.mean([measure(trace, layer) for layer in range(trace.layers)]))


def hit_ratios(trace: RoutingTrace) -> dict[str, float]:
    """LRU hits over references by slots, from the miss curve; checked against a replay at one capacity."""
    curve = MissCurve.total(miss_curves(trace))
    replay = simulate(trace, 16)
    if replay.total_faults != curve.misses_at(16):
        raise AssertionError(f"the replay has {replay.total_faults} faults, the curve {curve.misses_at(16)}")
    return {str(slots): round(1 - curve.miss_ratio(slots), 4) for slots in CAPACITIES}


def usage(member: Membership) -> NDArray[np.float64]:
    """[layers, experts]: the share of a layer's references that go to the expert."""
    counts = member.sum(axis=1).astype(np.float64)
    return counts / counts.sum(axis=1, keepdims=True)


def entropy(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bits, over the last axis."""
    return -(shares * np.log2(np.maximum(shares, 1e-12))).sum(axis=-1)


def difference(first: NDArray[np.float64], second: NDArray[np.float64]) -> dict[str, float]:
    """How much two domains' usage differs, as means over the layers."""
    mixed = (first + second) / 2
    divergence = entropy(mixed) - (entropy(first) + entropy(second)) / 2
    tops = [
        set(np.argsort(-f)[:TOP_EXPERTS]) & set(np.argsort(-s)[:TOP_EXPERTS])
        for f, s in zip(first, second, strict=True)
    ]
    return {
        "jensen_shannon_bits": round(float(divergence.mean()), 4),
        "total_variation": round(float(np.abs(first - second).sum(axis=1).mean() / 2), 4),
        f"top_{TOP_EXPERTS}_in_common": round(float(np.mean([len(t) for t in tops])) / TOP_EXPERTS, 4),
    }


def describe(sessions: list[Membership]) -> dict[str, object]:
    """The statistics of one domain; sessions follow one another without emptying the slots."""
    traces = [RoutingTrace.from_membership(session) for session in sessions]
    joined = RoutingTrace.from_membership(np.concatenate(sessions, axis=1))
    experts = joined.num_experts
    shares = usage(np.concatenate(sessions, axis=1))
    return {
        "steps": joined.steps,
        "overlap_of_neighbours": round(over_layers(joined, lambda t, i: overlap(t, i).share), 4),
        "reused_within_8": round(over_layers(joined, lambda t, i: reuse_share(t, i, 8)), 4),
        f"union_of_{BURST}": round(over_layers(joined, lambda t, i: float(burst_footprints(t, i, BURST).mean())), 4),
        "session_footprint": round(
            float(
                np.mean([over_layers(t, lambda t, i: float(cumulative_footprint(t, i)[-1] / experts)) for t in traces])
            ),
            4,
        ),
        "usage_entropy_bits": round(float(entropy(shares).mean()), 3),
        "top_8_share": round(float(np.sort(shares, axis=1)[:, -TOP_EXPERTS:].sum(axis=1).mean()), 4),
        "lru_hits": hit_ratios(joined),
    }


def uniform_reference(layers: int, steps: int, experts: int, top_k: int) -> list[Membership]:
    """One long session of independent uniform choices: what routing without any structure would look like."""
    rng = np.random.default_rng(0)
    ranks = rng.random((layers, steps, experts)).argsort(axis=2).argsort(axis=2)
    member: Membership = ranks < top_k
    return [member[:, at : at + SESSION] for at in range(0, steps, SESSION)]


def print_tables(result: dict[str, dict[str, dict[str, object]]]) -> None:
    """Markdown."""
    columns = list(result["routing"])
    print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for key in next(iter(result["routing"].values())):
        if key == "lru_hits":
            for slots in CAPACITIES:
                cells = [result["routing"][c]["lru_hits"][str(slots)] for c in columns]
                print(f"| LRU hits, {slots} slots | " + " | ".join(f"{v:.3f}" for v in cells) + " |")
        else:
            print(f"| {key} | " + " | ".join(str(result["routing"][c][key]) for c in columns) + " |")
    print("\n| | " + " | ".join(next(iter(result["differences"].values()))) + " |\n|---|---|---|---|")
    for pair, values in result["differences"].items():
        print(f"| {pair} | " + " | ".join(f"{v:.3f}" for v in values.values()) + " |")


def main() -> None:
    """Read the arguments, measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).parent
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=here.parent / "model")
    parser.add_argument("--sessions", type=int, default=24, help="sessions of 1024 tokens a domain")
    parser.add_argument("--out", type=Path, default=here / "routing.json")
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16)
    sessions: dict[str, list[Membership]] = {}
    for domain in DOMAINS:
        tokens = np.load(arguments.corpus / "tokens" / f"validation_{domain}.npy").astype(np.int64)
        stride = len(tokens) // arguments.sessions
        windows = [tokens[i * stride : i * stride + SESSION] for i in range(arguments.sessions)]
        sessions[domain] = [record(model, window) for window in windows]
        print(f"{domain}: {arguments.sessions} sessions recorded", flush=True)
    layers, _, experts = sessions["python"][0].shape
    top_k = model.config.num_experts_per_tok
    turns = [session for group in zip(*sessions.values(), strict=True) for session in group]
    routing = {domain: describe(sessions[domain]) for domain in DOMAINS}
    routing["domains in turn"] = describe(turns)
    routing["uniform"] = describe(uniform_reference(layers, arguments.sessions * SESSION, experts, top_k))
    shares = {domain: usage(np.concatenate(sessions[domain], axis=1)) for domain in DOMAINS}
    halves = {
        f"{d}, halves of its sessions": difference(
            usage(np.concatenate(sessions[d][::2], axis=1)), usage(np.concatenate(sessions[d][1::2], axis=1))
        )
        for d in DOMAINS
    }
    pairs = [(a, b) for i, a in enumerate(DOMAINS) for b in DOMAINS[i + 1 :]]
    differences = {f"{a} and {b}": difference(shares[a], shares[b]) for a, b in pairs} | halves
    result = {"routing": routing, "differences": differences}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print_tables(result)


if __name__ == "__main__":
    main()
