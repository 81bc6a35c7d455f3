"""The miss curves of a running worker: what its steps needed, from the device's ring into a fading histogram."""

from threading import Lock

from wisp.pager.routing_ring import RingReader
from wisp.workingset.curve import MissCurve
from wisp.workingset.histogram import HALF_LIFE_STEPS, ExpertHistogram


class RoutingHistogram:
    """An `ExpertHistogram` of every layer that follows a reader; one thread may follow while another asks."""

    def __init__(
        self, reader: RingReader, layers: int, num_experts: int, *, half_life_steps: float | None = HALF_LIFE_STEPS
    ) -> None:
        self._reader = reader
        self._histogram = ExpertHistogram(layers, num_experts, half_life_steps=half_life_steps)
        self._changing = Lock()
        self.lost = 0
        """Steps that came and went between two calls of `catch_up`, so that they count in no curve."""

    @property
    def steps(self) -> float:
        """Steps that count, fading ones in part."""
        return self._histogram.steps

    def catch_up(self, *, exactly: bool = False) -> int:
        """Count the steps since the last call, and say how many; see `RingReader.read`.

        The device is not held up. Call it from after the warm-up on, at least every thousand steps or so.
        """
        routed = self._reader.read(exactly=exactly)
        self.lost += routed.lost
        with self._changing:
            for membership in routed.memberships():
                self._histogram.observe(membership)
        return int(routed.bits.shape[1])

    def curves(self) -> list[MissCurve]:
        """The miss curve of each layer as of the last call of `catch_up`."""
        with self._changing:
            return self._histogram.curves()
