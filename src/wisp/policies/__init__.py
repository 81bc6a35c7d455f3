"""Replacement policies: which expert of a layer is evicted first."""

from collections.abc import Callable, Sequence

from wisp.errors import ConfigError, UnknownPolicyError
from wisp.policies.base import ReplacementPolicy
from wisp.policies.belady import Belady
from wisp.policies.fifo import FIFO
from wisp.policies.least_stale import LeastStale
from wisp.policies.lfru import LFRU
from wisp.policies.lru import LRU
from wisp.trace import Step

_ONLINE: dict[str, Callable[[], ReplacementPolicy]] = {
    "lru": LRU,
    "lfru": LFRU,
    "least_stale": LeastStale,
    "fifo": FIFO,
}

POLICIES = tuple(_ONLINE)
"""The names that serve a running model; the first is the default."""

OFFLINE_POLICIES = ("belady",)
"""The names that need the future, and so serve a replay only."""


def make_policy(name: str, *, future: Sequence[Step] | None = None) -> ReplacementPolicy:
    """A fresh policy for one layer.

    Args:
        name: one of POLICIES, or of OFFLINE_POLICIES if `future` is given.
        future: the layer's steps to come; the online policies do not look at it.

    Raises:
        UnknownPolicyError: no policy has this name. ConfigError: it needs the future.
    """
    if name in _ONLINE:
        return _ONLINE[name]()
    if name not in OFFLINE_POLICIES:
        raise UnknownPolicyError(name, [*POLICIES, *OFFLINE_POLICIES])
    if future is None:
        raise ConfigError(
            f"policy {name!r} needs to know the future and works in a replay only; "
            f"serve with one of {', '.join(POLICIES)}"
        )
    return Belady(future)


__all__ = [
    "FIFO",
    "LFRU",
    "LRU",
    "OFFLINE_POLICIES",
    "POLICIES",
    "Belady",
    "LeastStale",
    "ReplacementPolicy",
    "make_policy",
]
