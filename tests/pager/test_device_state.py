"""What the host knows of a device's counts: exact where it stands still, and never asked for where it does not."""

import pytest
import torch

pytest.importorskip("triton")

from wisp.pager.arena import Arena, ArenaShape
from wisp.pager.device_state import DeviceState
from wisp.pager.store import HostStore

LAYERS, COUNTED = 2, 6


class Device:
    """Counts steps as the kernels do, and shows every so many of them."""

    def __init__(self):
        stores = [HostStore({"weight": torch.empty(8, 8)}) for _ in range(LAYERS)]
        self.state = DeviceState(Arena(ArenaShape(LAYERS, 4, 2), stores[0].layout, "cpu"), stores)
        self.asked = 0
        fetch = self.state._copies.fetch

        def counted(*tensors):
            self.asked += 1
            fetch(*tensors)

        self.state._copies.fetch = counted

    def step(self, *, shows):
        self.state.fields[:, :COUNTED] += torch.arange(1, COUNTED + 1)
        if shows:
            self.state.mirror[:, :COUNTED] = self.state.fields[:, :COUNTED]

    def known(self):
        return [self.state.counts(layer) for layer in range(LAYERS)]

    def truth(self):
        return self.state.fields[:, :COUNTED].tolist()


@pytest.fixture
def device():
    device = Device()
    device.state.reset()
    return device


def test_a_device_that_stands_still_is_known_exactly_at_the_second_look(device):
    device.state.catch_up()
    device.step(shows=True)
    device.step(shows=False)
    device.state.catch_up()
    assert device.known() != device.truth()
    device.state.catch_up()
    assert device.known() == device.truth()


def test_a_device_that_shows_its_steps_is_not_asked(device):
    device.state.catch_up()
    asked = device.asked
    for _ in range(5):
        device.step(shows=True)
        device.state.catch_up()
    assert device.asked == asked
    assert device.known() == device.truth()


def test_what_is_shown_later_counts_more_than_what_was_found(device):
    for shows in (False, True, False, False):
        device.state.catch_up()
        device.state.catch_up()
        assert device.known() == device.truth()
        device.step(shows=shows)
        if shows:
            assert device.known() == device.truth()


def test_a_device_is_not_asked_before_the_warm_up_and_nothing_of_it_is_left():
    device = Device()
    device.step(shows=False)
    for _ in range(3):
        device.state.catch_up()
    assert device.asked == 0
    device.state.reset()
    assert device.known() == device.truth() == [[0] * COUNTED] * LAYERS
    device.step(shows=False)
    device.state.catch_up()
    device.state.catch_up()
    device.state.reset()
    assert device.known() == [[0] * COUNTED] * LAYERS
