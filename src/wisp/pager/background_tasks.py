"""Tasks for a few threads, of which no more is begun once the program is ending."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from threading import Thread, main_thread
from typing import Any


class BackgroundTasks(Executor):
    """Takes tasks until `start`; the threads end with the last.

    At the end of a program `ThreadPoolExecutor` does all that it was given first. Here what has not begun is cancelled,
    so that a program ends at once whose loading has failed.
    """

    def __init__(self) -> None:
        self._tasks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Take one more task, to be done in turn."""
        future: Future[Any] = Future()
        self._tasks.append((future, partial(fn, *args, **kwargs)))
        return future

    def start(self, threads: int, name: str) -> None:
        """Have so many threads do what was taken."""
        for number in range(min(threads, len(self._tasks))):
            Thread(target=_do, args=(self._tasks,), name=f"{name}-{number}").start()


def _do(tasks: deque[tuple[Future[Any], Callable[[], Any]]]) -> None:
    while True:
        try:
            future, task = tasks.popleft()
        except IndexError:  # other threads took the last
            return
        if not main_thread().is_alive():
            future.cancel()
        elif future.set_running_or_notify_cancel():
            try:
                future.set_result(task())
            except BaseException as error:  # whoever asks for the result gets it
                future.set_exception(error)
        del future, task  # a thread holds on to nothing of what it has done
