"""What a thread copies beside a device's work leaves other devices alone."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from wisp.pager.side_copies import SideCopies  # noqa: E402


@pytest.fixture
def streams(monkeypatch):
    """As if there were two devices, and this thread new. `devices_of_streams` are where streams were set and reset."""
    told = SimpleNamespace(here=0, devices_of_streams=[])

    @contextmanager
    def device(which):
        before, told.here = told.here, torch.device(which).index
        yield
        told.here = before

    @contextmanager
    def stream(which):
        before = told.here
        told.devices_of_streams.append(which.device.index)
        told.here = which.device.index
        yield
        told.devices_of_streams.append(before)  # torch sets this device, too
        told.here = before

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(device=device, synchronize=lambda: None))
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    return told


def test_a_new_thread_copies_from_the_second_device_and_touches_no_other(streams):
    target = torch.zeros(3)
    SideCopies(torch.device("cuda", 1)).fetch(target, torch.arange(3.0))
    assert target.tolist() == [0, 1, 2]
    assert streams.devices_of_streams == [1, 1]
    assert streams.here == 0
