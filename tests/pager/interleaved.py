"""The programs of a launch side by side in Triton's interpreter, which otherwise runs one after the other.

They take turns at random, one access to memory at a time. So whatever one program finds half done by another is found
here too; not what a GPU may reorder within a program.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any

import pytest
import triton.language as tl  # noqa: F401  # Triton looks for it beside what it interprets
from triton.runtime.interpreter import InterpreterBuilder, interpreter_builder

ACCESSES = ("create_masked_load", "create_masked_store", "create_atomic_rmw")


class _Turns:
    """Of the programs of one launch: `run` them all, each in a thread, of which one at a time goes on."""

    def __init__(self, programs: int, change: float) -> None:
        self._change, self._left, self._now = change, list(range(programs)), 0
        self._turns = [threading.Semaphore(0) for _ in range(programs)]
        self._errors: list[BaseException] = []

    def run(self, program: Callable[[], None]) -> None:
        threads = [threading.Thread(target=self._run_one, args=(number, program)) for number in self._left]
        for thread in threads:
            thread.start()
        self._give_turn()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def accesses(self) -> None:
        """The program whose turn it is comes to an access."""
        own = self._now
        if random.random() < self._change:
            self._give_turn()
            self._turns[own].acquire()

    def _give_turn(self) -> None:
        self._now = random.choice(self._left)
        interpreter_builder.set_grid_idx(self._now, 0, 0)
        self._turns[self._now].release()

    def _run_one(self, number: int, program: Callable[[], None]) -> None:
        self._turns[number].acquire()
        try:
            program()
        except BaseException as error:
            self._errors.append(error)
        self._left.remove(number)
        if self._left:
            self._give_turn()


@contextmanager
def interleaved(kernel: Any, *, change: float) -> Iterator[None]:
    """Within, every launch of a kernel is; `change` is how likely another program's turn is at every access."""
    program, turns = kernel.rewrite(), None

    @wraps(program)
    def all_at_the_last(**arguments: Any) -> None:
        nonlocal turns
        last = interpreter_builder.grid_dim[0] - 1
        if interpreter_builder.grid_idx[0] < last:
            return
        turns = _Turns(last + 1, change)
        turns.run(lambda: program(**arguments))
        turns = None

    def hooked(access: Callable[..., Any]) -> Callable[..., Any]:
        def at_its_turn(*arguments: Any, **named: Any) -> Any:
            if turns is not None:
                turns.accesses()
            return access(*arguments, **named)

        return at_its_turn

    all_at_the_last.__signature__ = signature(program)  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "rewrite", lambda: all_at_the_last)
        for name in ACCESSES:
            patch.setattr(InterpreterBuilder, name, hooked(getattr(InterpreterBuilder, name)))
        yield
