"""Stores that other threads page-lock while the checkpoint is read."""

from wisp.pager.background_tasks import BackgroundTasks
from wisp.pager.store import HostStore

THREADS = 4
"""Enough to be done before the files are read, and few beside those that copy."""


class PageLocking:
    """Of the stores of one worker, from the first weight on.

    While layers are still made it would hold them up: nobody can map memory while the system provides pages.
    """

    def __init__(self) -> None:
        self._waiting: list[HostStore] = []

    def add(self, store: HostStore) -> None:
        """Take a store that was made to be locked later."""
        self._waiting.append(store)

    def begin(self) -> None:
        """Have what was added locked."""
        tasks = BackgroundTasks()
        for store in self._waiting:
            store.lock_by(tasks)
        self._waiting.clear()
        tasks.start(THREADS, "wisp-page-lock")
