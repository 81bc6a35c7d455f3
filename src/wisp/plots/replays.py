"""Figure: hit ratio and faults by policy and number of slots."""

from collections.abc import Sequence
from pathlib import Path

from wisp.plots.figure import count_slots, panels, save
from wisp.policies import OFFLINE_POLICIES
from wisp.simulate import Replay

_MARKERS = "osD^vPX*"


def draw_replays(replays: Sequence[Replay], title: str, path: Path) -> None:
    """Draw to `path`: one line for each policy, in the order in which they come; the offline bound is dashed."""
    figure, (left, right) = panels(title)
    policies = list(dict.fromkeys(replay.policy for replay in replays))
    for index, policy in enumerate(policies):
        mine = [replay for replay in replays if replay.policy == policy]
        slots = [replay.slots for replay in mine]
        bound = policy in OFFLINE_POLICIES
        style = {"color": "black", "linestyle": "--"} if bound else {"color": f"C{index}"}
        look = {**style, "marker": _MARKERS[index % len(_MARKERS)], "markersize": 4}
        label = f"{policy} (bound)" if bound else policy
        left.plot(slots, [100 * (1 - replay.fault_ratio) for replay in mine], label=label, **look)
        right.plot(slots, [replay.faults.sum(axis=0).mean() for replay in mine], label=label, **look)
    left.set(title="Hits", ylabel="hit ratio (% of references)")
    right.set(title="Faults", ylabel="faults per step (experts, all layers)", ylim=(0, None))
    for axes in (left, right):
        count_slots(axes)
    left.legend()
    save(figure, path)
