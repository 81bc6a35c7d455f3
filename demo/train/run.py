"""Train the demo model: one command, about seven minutes on one data-centre GPU.

    python demo/train/run.py --corpus DIR --out demo/model

Builds the corpus and its tokens under DIR first when DIR/tokens is not there. The learning rate follows the clock, so
that a run of any `--minutes` ends fully decayed. Writes the checkpoint to OUT and the log to OUT/../train/log.json
(or `--log`).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from model import EXPERTS, TOP_K, DemoModel, export

HERE = Path(__file__).parent
DOMAINS = ("python", "prose", "shell")
END_OF_TEXT = 0


class Windows:
    """Batches of random windows of the token stream; half of them begin where a document begins."""

    def __init__(self, tokens: torch.Tensor, length: int, seed: int) -> None:
        self.tokens, self.length = tokens, length
        self.last = len(tokens) - length - 1
        starts = (tokens == END_OF_TEXT).nonzero().flatten() + 1
        self.starts = starts[starts < self.last]
        self.offsets = torch.arange(length + 1, device=tokens.device)
        self.generator = torch.Generator(tokens.device).manual_seed(seed)

    def batch(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, each int64 [rows, length]."""
        device = self.tokens.device
        anywhere = torch.randint(self.last, (rows - rows // 2,), generator=self.generator, device=device)
        chosen = torch.randint(len(self.starts), (rows // 2,), generator=self.generator, device=device)
        begin = torch.cat((anywhere, self.starts[chosen]))
        window = self.tokens[begin[:, None] + self.offsets].long()
        return window[:, :-1], window[:, 1:]


def load_tokens(path: Path, device: str) -> torch.Tensor:
    """A token stream, int32 on the device."""
    return torch.from_numpy(np.load(path).astype(np.int32)).to(device)


def autocast(device: str) -> torch.autocast:
    """bf16 matrix products over float32 weights."""
    return torch.autocast(device, dtype=torch.bfloat16)


@torch.no_grad()
def evaluate(model: torch.nn.Module, tokens: torch.Tensor, rows: int, length: int, batches: int) -> float:
    """Mean nats a token over the first windows of a validation stream (all of it when `batches` is large)."""
    count = (len(tokens) - 1) // length
    windows = tokens[: count * length + 1].long()
    inputs, targets = windows[:-1].view(count, length), windows[1:].view(count, length)
    losses = []
    for at in range(0, min(count, rows * batches) - rows + 1, rows):
        with autocast(tokens.device.type):
            losses.append(model(inputs[at : at + rows], targets[at : at + rows])[0].item())
    return float(np.mean(losses))


def optimizer_for(model: torch.nn.Module, rate: float, device: str) -> torch.optim.AdamW:
    """AdamW; no weight decay on norms."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=device == "cuda")


def train(arguments: argparse.Namespace) -> None:
    """Train by the clock, then write the checkpoint and the log."""
    began = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    folder = arguments.corpus / "tokens"
    meta = json.loads((folder / "meta.json").read_text())
    windows = Windows(load_tokens(folder / "train.npy", device), arguments.length, seed=1)
    validation = {d: load_tokens(folder / f"validation_{d}.npy", device) for d in DOMAINS}
    plain = DemoModel(arguments.dropout).to(device)
    model = torch.compile(plain, dynamic=False) if device == "cuda" else plain
    optimizer = optimizer_for(plain, arguments.rate, device)
    parameters = sum(p.numel() for p in plain.parameters())
    print(f"{parameters / 1e6:.2f} M parameters, {len(windows.tokens) / 1e6:.1f} M tokens")

    even = TOP_K / EXPERTS  # the share of tokens that choose an expert when the load is even

    def validate(batches: int) -> dict[str, float]:
        plain.eval()
        losses = {d: evaluate(model, validation[d], arguments.rows, arguments.length, batches) for d in DOMAINS}
        plain.train()
        return losses

    def step(rate: float, weight: float) -> tuple[torch.Tensor, torch.Tensor]:
        for group in optimizer.param_groups:
            group["lr"] = rate
        inputs, targets = windows.batch(arguments.rows)
        with autocast(device):
            loss, balance, load = model(inputs, targets)
        (loss + weight * balance).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach(), load

    step(0.0, 0.0)  # compiles
    validate(1)
    start = time.monotonic()
    print(f"ready after {start - began:.0f} s")
    curve: list[dict[str, object]] = []
    number, next_report = 0, 0.0
    running: list[torch.Tensor] = []
    while True:
        if number % 10 == 0 and device == "cuda":
            torch.cuda.synchronize()
        elapsed = time.monotonic() - start
        progress = elapsed / (60 * arguments.minutes)
        if progress >= 1 or number >= arguments.steps:
            break
        warm = min(1.0, (number + 1) / arguments.warmup)
        rate = arguments.rate * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
        # a strong pull at first, before experts that are never chosen fall behind for good
        weight = arguments.balance * max(1.0, 20 * (1 - progress / 0.05))
        loss, load = step(rate, weight)
        running.append(loss)
        number += 1
        if elapsed >= next_report:
            next_report = elapsed + 60 * arguments.minutes / 24
            losses = validate(2)
            point = {
                "seconds": round(elapsed, 1),
                "step": number,
                "rate": float(f"{rate:.3g}"),
                "train": round(torch.stack(running).mean().item(), 4),
                "validation": {d: round(v, 4) for d, v in losses.items()},
                "largest_load": round((load.max() / even).item(), 2),
                "idle_experts": int((load < 0.1 * even).sum()),
            }
            running.clear()
            curve.append(point)
            print(json.dumps(point), flush=True)
    final = validate(10**6 if device == "cuda" else 2)
    seen = number * arguments.rows * arguments.length
    result = {
        "parameters": parameters,
        "corpus_tokens": len(windows.tokens),
        "seen_tokens": seen,
        "passes": round(seen / len(windows.tokens), 1),
        "steps": number,
        "minutes": arguments.minutes,
        "settings": {k: getattr(arguments, k) for k in ("rows", "length", "rate", "balance", "dropout")},
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "final": {
            d: {
                "nats_per_token": round(final[d], 4),
                "bits_per_byte": round(
                    final[d] / math.log(2) * meta[d]["validation_tokens"] / meta[d]["validation_bytes"], 4
                ),
            }
            for d in DOMAINS
        },
        "corpus": meta,
        "curve": curve,
    }
    export(plain, arguments.out)
    arguments.log.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["final"]), f"{seen / 1e6:.0f} M tokens in {number} steps")


def main() -> None:
    """Read the arguments, prepare the tokens where they are missing, train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--log", type=Path, default=HERE / "log.json")
    parser.add_argument("--minutes", type=float, default=6.5, help="training time, without compilation")
    parser.add_argument("--steps", type=int, default=10**9, help="stop earlier, after so many steps")
    parser.add_argument("--rows", type=int, default=64, help="windows a step")
    parser.add_argument("--length", type=int, default=1024, help="tokens a window")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=200, help="steps")
    parser.add_argument("--balance", type=float, default=0.005, help="weight of the load-balancing loss")
    parser.add_argument("--dropout", type=float, default=0.05)
    arguments = parser.parse_args()
    if not (arguments.corpus / "tokens" / "meta.json").exists():
        for script in ("corpus.py", "tokens.py"):
            command = [sys.executable, str(HERE / script), "--corpus", str(arguments.corpus)]
            if script == "tokens.py":
                command += ["--out", str(arguments.out)]
            subprocess.run(command, check=True)
    train(arguments)


if __name__ == "__main__":
    main()
