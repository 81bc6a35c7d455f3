"""Why a plan chose what it chose, in words."""

from wisp.allocator.plan import Plan


def why(answer: Plan) -> str:
    """One sentence."""
    chosen, workload = answer.split.choice, answer.question.workload
    lost = f"{chosen.expert_slots} slots lose least time to misses"
    if chosen.expert_slots == answer.budget.most_slots:
        return f"{lost}: every expert is resident"
    if chosen == answer.split.candidates[-1]:
        floor = answer.layout.tokens(answer.budget.floor_blocks, workload.sequences)
        return (
            f"{lost}, and one more would leave KV below the {floor:,} tokens that {workload.sequences} sequences of "
            f"{workload.context:,} need"
        )
    more = f"{lost}: with more, lost KV would cost more than the hits save"
    return more if chosen == answer.split.candidates[0] else f"{more}; with fewer, the other way round"
