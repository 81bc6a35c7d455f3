"""What is measured of an engine whose core runs in this process."""

import statistics as stats
import time
from pathlib import Path

import torch
from vllm import SamplingParams
from vllm.v1.engine.llm_engine import LLMEngine

GIB = 2**30


def link_rate() -> float:
    """Bytes a second of a page-locked copy to the device."""
    source = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda")
    seconds = []
    for _ in range(4):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return source.numel() / min(seconds)


def paging(engine: LLMEngine) -> dict[str, float]:
    """The totals of wisp's counters so far, waiting for the device; zeros without paging."""
    from wisp.engines.vllm.local_engine import counters_of
    from wisp.pager.counters import FIELDS

    return counters_of(engine) or dict.fromkeys(FIELDS, 0.0)


def decode(
    engine: LLMEngine, batch: int, *, warm_steps: int, measured_steps: int, seconds: float = float("inf")
) -> dict[str, float]:
    """Seconds, bytes and hits of a decode step with `batch` streams.

    Fewer steps are measured if they would take more than `seconds` together; at least one is.
    """
    tokens = warm_steps + measured_steps + 8
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    names = [f"d{batch}-{stream}" for stream in range(batch)]
    for stream, name in enumerate(names):
        engine.add_request(name, {"prompt_token_ids": [7 + stream] * 16}, params)
    for _ in range(warm_steps):
        engine.step()
    before = paging(engine)
    window: list[float] = []
    while len(window) < measured_steps and sum(window) < seconds:
        start = time.perf_counter()
        engine.step()
        window.append(time.perf_counter() - start)
    after = paging(engine)
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()
    moved, references, faults = (after[name] - before[name] for name in ("bytes_moved", "references", "faults"))
    mean = stats.fmean(window)
    return {
        "steps": len(window),
        "step_s": mean,
        "step_median_s": stats.median(window),
        "decode_tok_s": batch / mean,
        "moved_gib_a_step": moved / len(window) / GIB,
        "hit_ratio": 1 - faults / references if references else 1.0,
    }


def first_token(engine: LLMEngine, tokens: int, *, repeats: int = 4) -> list[float]:
    """Seconds from a prompt of `tokens` to its first token, for all prompts but the first."""
    seconds = []
    for repeat in range(repeats):
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        engine.add_request(f"p{tokens}-{repeat}", {"prompt_token_ids": list(range(5, 5 + tokens))}, params)
        while engine.has_unfinished_requests():
            engine.step()
        seconds.append(time.perf_counter() - start)
    return seconds[1:] or seconds


def host_peak_gib() -> float:
    """Peak resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 2**20
    return 0.0
