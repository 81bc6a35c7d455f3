"""How wide the staging area is through which a prefill's experts pass: known to the pager and to the planner."""

GROUPS = 2
"""One group is computed while the next is copied."""
_GROUP_BYTES = 72 << 20
"""About 1.4 ms of a 51 GB/s link: long enough for a group's kernels to be launched meanwhile."""
_GROUP_EXPERTS = 8


def group_experts(expert_bytes: int) -> int:
    """Experts of a group: eight of the small ones, fewer of large ones, at least one."""
    return max(1, min(_GROUP_EXPERTS, _GROUP_BYTES // expert_bytes))


def staging_rows(expert_bytes: int, *, overflow: int = 0) -> int:
    """Experts that the staging area holds; in a planar arena also the `overflow` experts of a step beyond the slots."""
    return max(GROUPS * group_experts(expert_bytes), overflow)
