"""What the ranks of one engine settle between them at the start."""

import torch


def least_of_all_ranks(count: int) -> int:
    """The least of the numbers that all ranks call this with."""
    from vllm.distributed.parallel_state import get_world_group

    group = get_world_group()
    if group.world_size == 1:
        return count
    least = torch.tensor([count], dtype=torch.int64)
    torch.distributed.all_reduce(least, op=torch.distributed.ReduceOp.MIN, group=group.cpu_group)
    return int(least.item())


def any_rank(is_so: bool) -> bool:
    """Whether it is so on at least one of the ranks, all of which have to ask."""
    return least_of_all_ranks(0 if is_so else 1) == 0
