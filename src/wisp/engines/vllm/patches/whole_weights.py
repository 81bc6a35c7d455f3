"""`Worker.reload_weights` and whatever else takes a model's parameters for all of its weights: refuse it.

Why: the experts of a paged engine are in a backing store, so that its parameters and buffers are the other weights
and, at most, slots. Reloading ended half-way, with an engine that could not run any more; a checksum, a saved state
and a reset left the experts out in silence.
What: raises `UnsupportedError` before anything is touched, if the worker's engine is paged; otherwise calls the
original. Installed by the first paged layer only.
Versions: 0.32. Ends when: vLLM asks layers for what they save, reload and reset.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from wisp.engines.vllm.patches.once import once
from wisp.errors import UnsupportedError

METHODS = {
    "reload_weights": "would load experts that are not among its parameters; start a new engine",
    "reset_weights": "would leave the experts as they are; start a new engine",
    "compute_weight_checksums": "would leave the experts out; ask an engine without wisp",
    "save_sharded_state": "would leave the experts out; save it from an engine without wisp",
    "save_tensorized_model": "would leave the experts out; save it from an engine without wisp",
}
"""By name, what each would do to a paged engine, and what to do instead."""


@once
def install(is_paged: Callable[[Any], bool]) -> None:
    """Refuse the methods in this process for workers that `is_paged` says are; the first call counts."""
    from vllm.v1.worker.gpu_worker import Worker  # the CPU's is a subclass, and inherits them

    for name, why in METHODS.items():
        setattr(Worker, name, refusing(getattr(Worker, name), name, why, is_paged))


def refusing(original: Callable[..., Any], name: str, why: str, is_paged: Callable[[Any], bool]) -> Callable[..., Any]:
    """The method, which a worker of a paged engine does not run."""

    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_paged(self):
            raise UnsupportedError(f"{name} does not work with paging yet: it {why}")
        return original(self, *args, **kwargs)

    return method
