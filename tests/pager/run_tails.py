"""Pages heads of rows, then tails, in Triton's interpreter, and writes down what was whole when.

python run_tails.py RESULTS.json
"""

import json
import random
import sys
import tempfile
from pathlib import Path

import run_device as shared  # prepares Triton
import torch

from wisp.pager.device import DevicePager
from wisp.pager.tails import TailCopies
from wisp.policies import make_policy
from wisp.resident import ResidentSet

EXPERTS, SLOTS, TOP_K, STEPS = 16, 5, 4, 20


def main(results: str) -> None:
    """Rows of a store in memory, and of one in files, which are copied in pieces."""
    with tempfile.TemporaryDirectory() as folder:
        reports = {"rows": decode(shared.Layers(EXPERTS, SLOTS))}
        reports["pieces"] = decode(shared.Layers(EXPERTS, SLOTS, folder=folder))
    Path(results).write_text(json.dumps(reports))


def decode(layers: shared.Layers) -> dict[str, int]:
    """Some steps with a page table beside, layer after layer."""
    random.seed(0)
    torch.manual_seed(0)
    tails = TailCopies(layers.stores[0].layout.tail_start(lambda name: name == "w2"), torch.device("cpu"))
    layers.pagers = [
        DevicePager(layer, layers.state, store, layers.arena, link_bytes_per_second=1e9, tails=tails)
        for layer, store in enumerate(layers.stores)
    ]
    report = {"loads": 0, "heads": 0, "whole_early": 0, "whole": 0, "wrong": 0, "tables": 0}
    report |= {"overflow": 0, "overflow_whole": 0}
    residents = [ResidentSet(EXPERTS, SLOTS, make_policy("lru")) for _ in layers.pagers]
    for _ in range(STEPS):
        for layer, (pager, resident) in enumerate(zip(layers.pagers, residents, strict=True)):
            chosen = random.sample(range(EXPERTS), TOP_K) + random.sample(range(EXPERTS), TOP_K)
            plan = resident.plan(chosen, direct=True)
            rows = pager.page_head(torch.tensor(chosen, dtype=torch.int32).view(2, -1))
            direct = dict(zip(chosen, rows.tolist(), strict=True))
            report["tables"] += layers.state.slot_of[layer].tolist() != resident.slot_table().tolist()
            loaded = {e: layers.arena.shape.slot_row(layer, s) for wave in plan.waves for e, s in wave.loads}
            report["loads"] += len(loaded)
            head, right = layers.arena.tensors["w13"], layers.stores[layer].tensors["w13"]
            report["heads"] += sum(
                torch.equal(head[row].view(torch.uint8), right[expert].view(torch.uint8))
                for expert, row in loaded.items()
            )
            report["whole_early"] += sum(layers.holds(layer, row, expert) for expert, row in loaded.items())
            pager.wait_for_tails()
            report["whole"] += sum(layers.holds(layer, row, expert) for expert, row in loaded.items())
            report["overflow"] += len(plan.direct)
            report["overflow_whole"] += sum(layers.holds(layer, direct[expert], expert) for expert in plan.direct)
            report["wrong"] += sum(
                not layers.holds(layer, layers.arena.shape.slot_row(layer, slot), expert)
                for expert, slot in resident.slot_of.items()
            )
    return report


if __name__ == "__main__":
    main(*sys.argv[1:])
