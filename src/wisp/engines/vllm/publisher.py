"""Keeps what the host knows of a worker's paging close to what its device has counted."""

import atexit
import weakref
from threading import Event, Thread
from typing import Protocol

from wisp.pager.device_state import DeviceState
from wisp.pager.routing_histogram import RoutingHistogram

PUBLISH_SECONDS = 0.5


class HasState(Protocol):
    """What the layers of such a worker share."""

    state: DeviceState


class Published(Protocol):
    """A worker that counts on a device."""

    @property
    def routing(self) -> RoutingHistogram | None:
        """What steps needed, where that is followed."""

    @property
    def in_graph(self) -> HasState | None:
        """None until its layers are paged."""

    def publish(self) -> None:
        """Bring the counters up to date, without waiting for the device."""


class Publisher(Thread):
    """Publishes a worker's counters now and then, for as long as the worker is there.

    It reads host memory that the device writes, and asks the device itself where that has stood still meanwhile. It
    makes no call to the device until the engine is warm: a graph may be being captured. At the end of the process it
    stops before the device's driver does.
    """

    def __init__(self, worker: Published) -> None:
        super().__init__(name="wisp-counters", daemon=True)
        self._worker = weakref.ref(worker)
        self._stopped = Event()
        atexit.register(self.stop)

    def run(self) -> None:
        """Until the worker is dropped."""
        while (worker := self._worker()) is not None and not self._stopped.is_set():
            if worker.in_graph is not None:
                worker.in_graph.state.catch_up()
            worker.publish()
            if worker.routing is not None:
                worker.routing.catch_up()
            del worker
            self._stopped.wait(PUBLISH_SECONDS)
        atexit.unregister(self.stop)

    def stop(self) -> None:
        """Publish no more."""
        self._stopped.set()
        self.join()
