"""How long the miss curves of a large trace take, against one replay; writes results.json.

Run: python benchmarks/curve_speed/run.py --machine "2-core x86-64 VM"
"""

import argparse
import json
import platform
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np

import wisp
from wisp.policies import POLICIES, make_policy
from wisp.resident import ResidentSet
from wisp.simulate import simulate
from wisp.trace import RoutingTrace
from wisp.workingset import miss_curves
from wisp.workingset.footprint import reuse_share

LAYERS, STEPS, EXPERTS, TOP_K, SLOTS = 48, 10_000, 128, 8, 64
PERSISTENCE = 0.5  # of a router score from step to step: about 42 % of the chosen experts repeat


def synthetic_trace() -> RoutingTrace:
    """Top-k of scores that drift: each is an autoregressive process around a preference of its own."""
    rng = np.random.default_rng(0)
    preference = rng.normal(scale=1.0, size=(LAYERS, EXPERTS)).astype(np.float32)
    drift = rng.standard_normal((LAYERS, EXPERTS), dtype=np.float32)
    fresh = np.float32((1 - PERSISTENCE**2) ** 0.5)
    membership = np.zeros((LAYERS, STEPS, EXPERTS), dtype=bool)
    for step in range(STEPS):
        drift = PERSISTENCE * drift + fresh * rng.standard_normal(drift.shape, dtype=np.float32)
        chosen = np.argpartition(preference + drift, -TOP_K, axis=1)[:, -TOP_K:]
        np.put_along_axis(membership[:, step], chosen, True, axis=1)
    return RoutingTrace.from_membership(membership)


def cpu_seconds(work: Callable[[], object], repeats: int) -> float:
    """The least processor time of some repeats; one thread works, so it is what one free core would take."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return round(min(times), 3)


def plan_microseconds(trace: RoutingTrace, policy: str) -> dict[str, float]:
    """The median time of one `plan`, by the number of faults in it."""
    resident, by_faults = ResidentSet(EXPERTS, SLOTS, make_policy(policy)), defaultdict(list)
    for step in trace.layer(0):
        start = time.perf_counter()
        plan = resident.plan(step)
        by_faults[plan.faults].append(time.perf_counter() - start)
    return {str(faults): round(median(by_faults[faults]) * 1e6, 1) for faults in (0, 1, 2, 3)}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", required=True, help='the kind of machine in words: "2-core x86-64 VM"')
    machine = parser.parse_args().machine
    trace = synthetic_trace()
    curve = miss_curves(trace)[0]
    assert curve.misses_at(SLOTS) == simulate(trace, SLOTS, layer=0).total_faults
    results = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "versions": {
            "wisp": wisp.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "trace": {
            "layers": LAYERS,
            "steps": STEPS,
            "experts": EXPERTS,
            "top_k": TOP_K,
            "repeat_share": round(reuse_share(trace, 0, 1), 3),
            "repeat_share_within_8": round(reuse_share(trace, 0, 8), 3),
        },
        "curves_of_all_layers_and_capacities_cpu_seconds": cpu_seconds(lambda: miss_curves(trace), 5),
        "replay_of_all_layers_at_one_capacity_cpu_seconds": cpu_seconds(lambda: simulate(trace, SLOTS), 2),
        "plan_median_microseconds_by_faults": {policy: plan_microseconds(trace, policy) for policy in POLICIES},
        "plan_slots": SLOTS,
    }
    text = json.dumps(results, indent=2)
    Path(__file__).with_name("results.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
