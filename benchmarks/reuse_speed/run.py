"""How fast the online histograms take references in; writes results.json.

Run: python benchmarks/reuse_speed/run.py --machine "2-core x86-64 VM"
"""

import argparse
import json
import platform
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

import wisp
from wisp.workingset.blocks import MAX_BLOCKS, BlockHistogram
from wisp.workingset.histogram import ExpertHistogram

REFERENCES, REFERENCES_PER_STEP = 2_000_000, 256
DISTINCT = (20_000, 100_000, 10_000_000)
LAYERS, EXPERTS, TOP_K, STEPS = 48, 128, 8, 5_000


def block_references_per_second(distinct: int) -> dict[str, float]:
    """Zipf-distributed blocks, given step by step; processor time, the better of two runs."""
    ids = np.random.default_rng(0).zipf(1.1, REFERENCES) % distinct
    names = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    seconds = []
    for _ in range(2):
        histogram = BlockHistogram()
        start = time.process_time()
        for step, first in enumerate(range(0, REFERENCES, REFERENCES_PER_STEP)):
            histogram.observe(names[first : first + REFERENCES_PER_STEP], step)
        curve = histogram.curve()
        seconds.append(time.process_time() - start)
    return {
        "distinct_blocks": len(np.unique(ids)),
        "miss_ratio_at_max_blocks": round(curve.miss_ratio(MAX_BLOCKS), 3),
        "million_references_per_second": round(REFERENCES / min(seconds) / 1e6, 2),
    }


def expert_step_microseconds() -> float:
    """One step of all layers, top-8 of drifting scores."""
    rng = np.random.default_rng(0)
    histogram = ExpertHistogram(LAYERS, EXPERTS)
    preference = rng.normal(size=(LAYERS, EXPERTS))
    seconds = 0.0
    for _ in range(STEPS):
        chosen = np.argpartition(preference + rng.normal(size=preference.shape), -TOP_K, axis=1)[:, -TOP_K:]
        membership = np.zeros((LAYERS, EXPERTS), dtype=np.bool_)
        np.put_along_axis(membership, chosen, True, axis=1)
        start = time.process_time()
        histogram.observe(membership)
        seconds += time.process_time() - start
    return round(seconds / STEPS * 1e6, 1)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", required=True, help='the kind of machine in words: "2-core x86-64 VM"')
    machine = parser.parse_args().machine
    results = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "versions": {"wisp": wisp.__version__, "python": platform.python_version(), "numpy": np.__version__},
        "blocks": [block_references_per_second(distinct) for distinct in DISTINCT],
        "blocks_max_blocks": MAX_BLOCKS,
        "experts_microseconds_per_step_of_48_layers": expert_step_microseconds(),
    }
    text = json.dumps(results, indent=2)
    Path(__file__).with_name("results.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
