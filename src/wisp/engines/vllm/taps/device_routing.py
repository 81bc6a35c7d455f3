"""The routing that the device decides, read from its ring beside the steps."""

import numpy as np

from wisp.engines.vllm.taps.routing_source import Bits
from wisp.errors import RecordingError
from wisp.pager.routing_ring import RingReader


class DeviceRouting:
    """A `RoutingSource`. A layer's clock ticks once a forward pass, whether it is decided in place or streamed.

    After a quarter of the ring's steps it is read whether or not anybody takes them, long before it is full.
    """

    def __init__(self, reader: RingReader, ring_steps: int) -> None:
        """Read from the next step on; waits for the device."""
        reader.read(exactly=True)
        self._reader, self._ring_steps = reader, ring_steps
        self._lost = self._unread = 0
        routed = reader.read(exactly=True)
        self.num_experts = routed.num_experts
        self._nothing = routed.bits
        self._pieces: list[Bits] = []

    def ran(self) -> None:
        """See `RoutingSource`."""
        self._unread += 1
        if self._unread >= self._ring_steps // 4:
            self._read(exactly=False)

    def take(self, *, wait: bool) -> Bits:
        """See `RoutingSource`.

        Raises:
            RecordingError: the ring was overwritten before it was read.
        """
        self._read(exactly=wait)
        if self._lost:
            raise RecordingError(
                f"the device has overwritten {self._lost} steps of its routing before they were read: it keeps "
                f"{self._ring_steps}, and ran further ahead of the host; record with fewer requests at a time"
            )
        bits: Bits = np.concatenate([self._nothing, *self._pieces], axis=1)
        self._pieces.clear()
        return bits

    def stop(self) -> None:
        """See `RoutingSource`; the ring goes on, for whoever else reads it."""

    def _read(self, *, exactly: bool) -> None:
        routed = self._reader.read(exactly=exactly)
        self._lost += routed.lost
        self._pieces.append(routed.bits)
        self._unread -= routed.bits.shape[1]
