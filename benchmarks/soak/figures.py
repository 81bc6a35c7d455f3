"""What a soak comes to: lines through its memory, and what has to hold."""

from collections.abc import Sequence
from statistics import linear_regression, median
from typing import Any

from clients import KINDS

MOST_GROWTH_MIB_PER_MINUTE = 1.0


def memory_figures(samples: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    """A line through what follows the first third."""
    later = samples[len(samples) // 3 :]
    minutes = [seconds / 60 for seconds, *_ in later]
    figures: dict[str, Any] = {"median_mib": round(median(a + b for _, a, b in later), 1)}
    for name, values in {
        "whole": [a + b for _, a, b in later],
        "front_end": [a for _, a, _ in later],
        "engine": [b for *_, b in later],
    }.items():
        figures[f"{name}_growth_mib_per_minute"] = round(linear_regression(minutes, values).slope, 3)
    figures["samples_s_front_end_mib_engine_mib"] = [list(sample) for sample in samples[::6]]
    return figures


def device_memory_figures(samples: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    """A line through what follows the first third; zeros without a GPU."""
    later = samples[len(samples) // 3 :]
    minutes = [seconds / 60 for seconds, *_ in later]
    return {
        "median_held_mib": round(median(held for *_, held in later), 1),
        "allocated_growth_mib_per_minute": round(linear_regression(minutes, [a for _, a, _ in later]).slope, 3),
        "held_growth_mib_per_minute": round(linear_regression(minutes, [held for *_, held in later]).slope, 3),
        "samples_s_allocated_mib_held_mib": [list(sample) for sample in samples[::6]],
    }


def checks(result: dict[str, Any]) -> dict[str, bool]:
    """What has to hold."""
    requests, integrity, sampled = result["requests"], result["integrity"], result["sample"]
    growth, bound = result["memory"]["whole_growth_mib_per_minute"], MOST_GROWTH_MIB_PER_MINUTE
    held = result["device_memory"]["held_growth_mib_per_minute"]
    asked = result["decided_on_asked"]
    return {
        "every kind of client was there, and requests were preempted": result["preemptions"] > 0
        and all(requests[kind] > 0 for kind in KINDS),
        "no request failed": not result["errors"],
        "every finished request had a sensible answer": not result["not_sensible"],
        "nothing is left running, waiting or holding KV blocks": not any(result["left_when_idle"].values()),
        f"memory grows by less than {bound:g} MiB a minute after the first third": growth < bound,
        f"GPU memory grows by less than {bound:g} MiB a minute after the first third": held < bound,
        f"paging was decided on the {asked or 'device or the host'}": result["decided_on"]
        in ([[asked]] if asked else [["device"], ["host"]]),
        "every slot holds its expert, under load and at the end": integrity["wrong"] == 0
        and integrity["residents_at_the_end"] > 0,
        "the sample is identical to the unpaged server's": sampled["identical"] == sampled["answers"] > 0,
    }
