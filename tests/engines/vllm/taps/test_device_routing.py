"""What the device's ring holds is recorded like what the host has planned. A ring in host memory is written by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import RecordingError
from wisp.trace import RoutingTrace

pytest.importorskip("vllm")

from wisp.engines.vllm.taps.device_routing import DeviceRouting
from wisp.pager.routing_ring import RingReader, RoutingRing

LAYERS, EXPERTS, RING_STEPS = 2, 40, 16


class Device:
    """Runs steps as the kernels do: writes a layer's set, then ticks its clock."""

    def __init__(self):
        self.ring = RoutingRing(LAYERS, EXPERTS, torch.device("cpu"), steps=RING_STEPS)
        self.totals = torch.zeros((LAYERS, 3), dtype=torch.int64)

    def source(self):
        return DeviceRouting(RingReader(self.ring, self.totals), RING_STEPS)

    def run(self, sets):
        for layer, experts in enumerate(sets):
            member = np.zeros(EXPERTS, dtype=np.bool_)
            member[list(experts)] = True
            packed = np.packbits(member)
            place = int(self.totals[layer, 0]) % RING_STEPS
            self.ring.words[place, layer].numpy().view(np.uint8)[: len(packed)] = packed
            self.totals[layer, 0] += 1


def steps_of(bits):
    trace = RoutingTrace(bits, EXPERTS)
    return list(zip(*(trace.layer(layer) for layer in range(LAYERS)), strict=True))


sets = st.tuples(*[st.sets(st.integers(0, EXPERTS - 1), max_size=5)] * LAYERS)


@given(st.lists(sets, max_size=40), st.lists(sets, max_size=60), st.sets(st.integers(0, 59)))
def test_every_step_arrives_once_and_in_order(before, steps, takes):
    device = Device()
    for step in before:
        device.run(step)
    source, taken = device.source(), []
    for number, step in enumerate(steps):
        device.run(step)
        source.ran()
        if number in takes:
            taken += steps_of(source.take(wait=False))
    taken += steps_of(source.take(wait=True))
    assert taken == [tuple(tuple(sorted(experts)) for experts in step) for step in steps]
    assert source.take(wait=True).shape[1] == 0


def test_steps_that_were_overwritten_are_an_error():
    device = Device()
    source = device.source()
    for number in range(RING_STEPS + 3):
        device.run([{number}, {1}])
    with pytest.raises(RecordingError, match=r"overwritten 3 steps .* it keeps 16"):
        source.take(wait=True)
