"""The figure of this benchmark: how far each way to divide is from the best one, and where the best one is."""

from pathlib import Path
from typing import Any

import numpy as np

from wisp.plots.figure import panels, save

SHOWN = {"MV-WSA": "C0", "MV-WSA, replanned": "C3", "half-and-half": "C1", "Flux-prop": "C2"}
CONSTANT = {"MV-WSA": "o", "half-and-half": "s", "Flux-prop": "^"}


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw to `path` what `run.py` found."""
    rows = result["rows"]
    figure, (left, middle, right) = panels(
        f"{len(rows)} workflows: estimated on the first half, judged on the second by replay", 3
    )
    share = (np.arange(len(rows)) + 0.5) / len(rows) * 100
    for arm, color in SHOWN.items():
        distances = np.sort([100 * row["arms"][arm]["over_oracle"] for row in rows])
        left.plot(share, distances, color=color, linewidth=2, label=f"{arm}, mean {distances.mean():.1f} %")
    left.axhline(4, color="0.4", linewidth=0.8, linestyle=":")
    left.text(100, 3.9, "4 %", color="0.4", va="top", ha="right")
    left.set_yscale("symlog", linthresh=1)
    left.set_yticks([0, 1, 4, 10, 30, 100, 300], ["0", "1", "4", "10", "30", "100", "300"])
    left.minorticks_off()
    left.set(
        title="Time lost, above the best split of each workflow",
        xlabel="workflows (%), nearest first",
        ylabel="above the oracle (%)",
        ylim=(0, 4000),  # room for the legend
    )
    left.legend(loc="upper left")

    for arm, marker in CONSTANT.items():
        oracle = [row["oracle"]["f"] for row in rows]
        chosen = [_served(row, arm) * row["all_slots_f"] for row in rows]
        middle.plot(oracle, chosen, marker, color=SHOWN[arm], markersize=4, alpha=0.8, label=arm)
    middle.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
    middle.set(
        title="Share of the budget for experts",
        xlabel="best in hindsight (f)",
        ylabel="chosen, moved to where it serves (f)",
    )
    middle.legend()

    families = result["families"]
    for place, (arm, color) in enumerate(SHOWN.items()):
        means = [100 * own[arm]["mean"] for own in families.values()]
        right.barh(np.arange(len(families)) + 0.2 * (place - 1.5), means, 0.18, color=color, label=arm)
    right.set_yticks(np.arange(len(families)), list(families))
    right.invert_yaxis()
    right.set_xscale("symlog", linthresh=1)
    right.set_xticks([0, 1, 4, 10, 30, 100, 300], ["0", "1", "4", "10", "30", "100", "300"])
    right.minorticks_off()
    right.axvline(4, color="0.4", linewidth=0.8, linestyle=":")
    right.set(title="By family, mean", xlabel="above the oracle (%)")
    save(figure, path)


def _served(row: dict[str, Any], arm: str) -> int:
    first, last = row["admissible_slots"]
    return int(min(max(row["arms"][arm]["slots"], first), last))
