"""Which settings would make an admission floor fit that does not."""

from collections.abc import Callable
from dataclasses import replace

from wisp.allocator.question import Question
from wisp.allocator.workload import SMALLEST_CHUNK

_CONTEXT_STEP = 256


def settings_that_fit(question: Question) -> list[str]:
    """Single changes that suffice, as far as each has to go; if none does, all of them together, if that does."""
    workload = question.workload

    def fits(
        *,
        sequences: int = workload.sequences,
        context: int = workload.context,
        chunk: int = workload.chunk,
        kv_dtype: str = question.kv_dtype,
    ) -> bool:
        changed = replace(workload, sequences=sequences, context=context, chunk=chunk)
        return bool(replace(question, workload=changed, kv_dtype=kv_dtype).budget.admissible_slots())

    remedies = []
    if sequences := _largest(workload.sequences - 1, 1, lambda each: fits(sequences=each)):
        remedies.append(f"lower --max-num-seqs to {sequences}")
    if context := _largest(workload.context - 1, _CONTEXT_STEP, lambda each: fits(context=each)):
        remedies.append(f"lower --max-model-len to {context}")
    if question.kv_dtype == "auto" and fits(kv_dtype="fp8"):
        remedies.append("keep KV in FP8 (--kv-cache-dtype fp8)")
    chunk = min(SMALLEST_CHUNK, workload.chunk)
    if chunk < workload.chunk and fits(chunk=chunk):
        remedies.append(f"lower --max-num-batched-tokens to {chunk}")
    if remedies:
        return remedies
    together = _largest(
        workload.context, _CONTEXT_STEP, lambda each: fits(sequences=1, context=each, chunk=chunk, kv_dtype="fp8")
    )
    if not together:
        return []
    return [f"set --max-num-seqs 1 --max-model-len {together} --kv-cache-dtype fp8 --max-num-batched-tokens {chunk}"]


def _largest(most: int, multiple: int, fits: Callable[[int], bool]) -> int:
    """The largest multiple up to `most` that fits, given that every smaller one then does; 0 if none."""
    low, high = 0, most // multiple
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * multiple) else (low, middle - 1)
    return low * multiple
