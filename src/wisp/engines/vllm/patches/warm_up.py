"""`Worker.compile_or_warm_up_model`: forget what the warm-up paged.

Why: the engine profiles and warms up with made-up tokens, whose experts say nothing about the workload and whose
faults would stand in the counters for ever.
What: calls the original, then resets the page tables and the counters. Installed by the first paged layer only.
Versions: 0.32. Ends when: vLLM tells layers that a forward pass is a dummy.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from wisp.engines.vllm.patches.once import once
from wisp.engines.vllm.patches.worker_class import worker_class


@once
def install(forget: Callable[[Any], None]) -> None:
    """Call `forget` with the engine's configuration after every warm-up in this process; the first call counts."""
    worker = worker_class()
    original = worker.compile_or_warm_up_model

    @wraps(original)
    def compile_or_warm_up_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        forget(self.vllm_config)
        return result

    worker.compile_or_warm_up_model = compile_or_warm_up_model
