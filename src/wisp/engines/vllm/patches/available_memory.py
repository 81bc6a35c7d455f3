"""`Worker.determine_available_memory`: divide a budget between expert slots and KV.

Why: here the engine has loaded and measured itself and has not yet made its KV cache or captured a graph: the one
moment when slots can grow and KV can take the rest.
What: hands the original to `answer`, which calls it and may return another number of bytes for KV. Where no budget is
to be divided that is the original's. Installed by the first paged layer only.
Versions: 0.32. Ends when: vLLM asks plug-ins what they take before it makes the KV cache.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from wisp.engines.vllm.patches.once import once
from wisp.engines.vllm.patches.worker_class import worker_class

Answer = Callable[[Any, Callable[[], int]], int]


@once
def install(answer: Answer) -> None:
    """Have `answer(worker, original)` say how many bytes KV gets in this process; the first call counts."""
    worker = worker_class()
    original = worker.determine_available_memory

    @wraps(original)
    def determine_available_memory(self: Any) -> int:
        return answer(self, partial(original, self))

    worker.determine_available_memory = determine_available_memory
