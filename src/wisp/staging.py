"""How wide the staging area is through which a prefill's experts pass: known to the pager and to the planner."""

GROUPS = 2
"""One group is computed while the next is copied."""
_GROUP_BYTES = 72 << 20
"""About 1.4 ms of a 51 GB/s link: long enough for a group's kernels to be launched meanwhile."""
_GROUP_EXPERTS = 8
_AHEAD_BYTES = 2 * _GROUP_BYTES


def group_experts(expert_bytes: int) -> int:
    """Experts of a group: eight of the small ones, fewer of large ones, at least one."""
    return max(1, min(_GROUP_EXPERTS, _GROUP_BYTES // expert_bytes))


def staging_rows(expert_bytes: int, *, overflow: int = 0) -> int:
    """Experts that the staging area holds; also the `overflow` of a step beyond the slots, where that needs rows."""
    return max(GROUPS * group_experts(expert_bytes), overflow)


def planar_rows(expert_bytes: int, *, experts: int, slots: int) -> int:
    """The same where a layer's `experts` have to be there all at once, and beside them the next layer's first ones.

    So many of these that their copies outlast a layer's computing in most prefills.
    """
    size = group_experts(expert_bytes)
    ahead = max(1, min(experts, _AHEAD_BYTES // expert_bytes))
    return sum(-(-count // size) * size for count in (experts - slots, ahead))
