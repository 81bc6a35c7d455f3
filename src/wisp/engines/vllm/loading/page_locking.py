"""Stores that another thread page-locks while the checkpoint is read into others."""

from concurrent.futures import ThreadPoolExecutor

from wisp.pager.store import HostStore


class PageLocking:
    """Of the stores of one worker, one after the other as they are filled.

    Most checkpoints have the weights of a layer together. Once they go on to another layer, the memory of the one
    before is there, since it was written, and locking it takes little. What comes in another order is locked all the
    same, only more slowly: the system has to provide the memory then, beside the copies into it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "wisp-page-lock")
        self._being_filled: HostStore | None = None

    def fills(self, store: HostStore) -> None:
        """A weight of this store, which was made to be locked later, comes now."""
        if store is self._being_filled:
            return
        if self._being_filled is not None:
            self._being_filled.lock_by(self._thread)
        self._being_filled = store
