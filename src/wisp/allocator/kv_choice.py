"""Which demand for KV a plan goes by: the recorded one, or the stated prior."""

from wisp.allocator.kv_demand import KvDemand, PriorKv, traced_kv
from wisp.allocator.question import Question
from wisp.recording import Recording


def chosen_kv(question: Question, recording: Recording | None, *, is_prior_asked_for: bool) -> KvDemand:
    """As recorded, unless the trace has no KV references or the prior was asked for; that is told."""
    if recording is None:
        return PriorKv(question.layout, question.workload)
    if is_prior_asked_for:
        return PriorKv(question.layout, question.workload, ", as --conversations is given")
    if recording.kv is None or not len(recording.kv.blocks):
        return PriorKv(question.layout, question.workload, ", as the trace has no KV references")
    return traced_kv(recording, question.layout, question.workload)
