"""Figure: miss ratio curves of every layer and of all, the working set over windows, and what KV pools lose."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wisp.plots.figure import count_slots, panels, save
from wisp.workingset import KvReuse
from wisp.workingset.summary import TraceSummary


class KvCurve(NamedTuple):
    """What there is to draw of KV."""

    reuse: KvReuse
    block_tokens: int
    chosen_blocks: int | None


def draw_curves(summary: TraceSummary, slots: int | None, title: str, path: Path, kv: KvCurve | None = None) -> None:
    """Draw to `path`; the point at `slots` is marked, and that of the chosen KV pool."""
    figure, (left, right, *last) = panels(title, 2 if kv is None else 3)
    if kv is not None:
        _draw_kv(last[0], kv)
    num_experts, widest = summary.trace.num_experts, summary.widest_step
    capacities = np.arange(widest, num_experts + 1)
    for index, curve in enumerate(summary.curves):
        label = "single layers" if index == 0 else None
        left.plot(capacities, _ratios(curve.misses, widest), color="0.75", linewidth=0.8, label=label)
    left.plot(capacities, _ratios(summary.total.misses, widest), color="C0", linewidth=2.2, label="all layers")
    if slots is not None:
        ratio = summary.total.miss_ratio(slots)
        left.plot(
            [slots], [ratio], "o", color="C3", markersize=8, zorder=5, label=f"chosen: {slots} slots, {ratio:.1%}"
        )
        left.axvline(slots, color="C3", linewidth=0.8, linestyle=":")
    left.set(title="Misses", ylabel="miss ratio (misses per reference)", ylim=(0, None))
    count_slots(left)
    left.legend()

    lengths = [window.steps for window in summary.windows]
    by_layer = np.array([window.working_set for window in summary.windows])
    right.fill_between(
        lengths, by_layer.min(axis=1), by_layer.max(axis=1), color="C0", alpha=0.18, label="least to largest layer"
    )
    right.plot(lengths, by_layer.mean(axis=1), "o-", color="C0", markersize=4, label="mean of the layers")
    if slots is not None:
        right.axhline(slots, color="C3", linewidth=0.8, linestyle=":", label=f"{slots} slots")
    right.set_xscale("log", base=4)
    right.set_xticks(lengths, [f"{length:,}" for length in lengths])
    right.minorticks_off()
    right.set(
        title="Working set",
        xlabel="window (steps)",
        ylabel="distinct experts of a layer",
        ylim=(0, num_experts * 1.03),
    )
    right.legend()
    save(figure, path)


def _draw_kv(axes: Any, kv: KvCurve) -> None:
    reuse, tokens = kv.reuse, kv.block_tokens
    most = max(int(reuse.depths.max(initial=0)) + 1, kv.chosen_blocks or 0)
    blocks = np.unique(np.concatenate([[0], reuse.depths, reuse.depths + 1, [round(1.05 * most)]]))
    lost = [reuse.lost_share(int(each)) for each in blocks]
    axes.plot(blocks * tokens, lost, color="C0", linewidth=2.2, label=f"{reuse.returns:,} references that come back")
    if kv.chosen_blocks is not None:
        share = reuse.lost_share(kv.chosen_blocks)
        at = kv.chosen_blocks * tokens
        axes.plot([at], [share], "o", color="C3", markersize=8, zorder=5, label=f"chosen: {at:,} tokens, {share:.1%}")
        axes.axvline(at, color="C3", linewidth=0.8, linestyle=":")
    axes.set(title="KV", xlabel="KV pool (tokens)", ylabel="miss ratio (lost of those that come back)", ylim=(0, None))
    axes.legend()


def _ratios(misses: NDArray[np.float64], widest: int) -> NDArray[np.float64]:
    ratios: NDArray[np.float64] = misses[widest:] / max(float(misses[0]), 1.0)
    return ratios
