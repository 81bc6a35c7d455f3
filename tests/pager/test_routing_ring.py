"""A reader of the ring gets every step once and in order, or learns how many it has missed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import ConfigError
from wisp.pager.routing_histogram import RoutingHistogram
from wisp.pager.routing_ring import RingReader, RoutingRing

LAYERS = 3


class Steps:
    """Writes random steps to a ring as the kernels do."""

    def __init__(self, num_experts: int, ring_steps: int) -> None:
        self.ring = RoutingRing(LAYERS, num_experts, torch.device("cpu"), steps=ring_steps)
        self.totals = torch.zeros((LAYERS, 8), dtype=torch.int64)
        self.random = np.random.default_rng(0)
        self.needed = []

    def run(self, count: int) -> None:
        for _ in range(count):
            self.needed.append(self.random.random((LAYERS, self.ring.num_experts)) < 0.3)
            for layer in range(LAYERS):
                self.run_layer(layer)

    def run_layer(self, layer: int) -> None:
        packed = np.packbits(self.needed[-1][layer])
        place = self.totals[layer, 0] % self.ring.steps
        self.ring.words[place, layer].view(torch.uint8)[: len(packed)] = torch.from_numpy(packed)
        self.totals[layer, 0] += 1


@given(
    num_experts=st.sampled_from([1, 8, 60, 128, 160]),
    bursts=st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=12),
)
def test_what_is_read_and_what_is_lost_are_all_steps_in_order(num_experts, bursts):
    steps = Steps(num_experts, 8)
    reader = RingReader(steps.ring, steps.totals)
    seen = 0
    for count, exactly in bursts:
        steps.run(count)
        routed = reader.read(exactly=exactly)
        seen += routed.lost
        for membership in routed.memberships():
            assert np.array_equal(membership, steps.needed[seen])
            seen += 1
        assert seen in ([len(steps.needed)] if exactly else [len(steps.needed) - 1, len(steps.needed)])
    assert reader.read(exactly=True).lost == 0


def test_a_late_reader_learns_how_many_steps_are_gone():
    steps = Steps(8, 8)
    reader, exact = (RingReader(steps.ring, steps.totals) for _ in range(2))
    steps.run(20)
    late = reader.read()
    assert (late.lost, late.bits.shape) == (20 - 7, (LAYERS, 6, 1))  # the newest is not done yet
    late = exact.read(exactly=True)
    assert (late.lost, late.bits.shape) == (20 - 8, (LAYERS, 8, 1))


def test_a_step_in_the_middle_of_the_layers_is_left_for_later():
    steps = Steps(8, 8)
    reader = RingReader(steps.ring, steps.totals)
    steps.run(3)
    steps.needed.append(np.ones((LAYERS, 8), dtype=bool))
    steps.run_layer(0)
    assert reader.read().bits.shape[1] == 2
    steps.run_layer(1)
    steps.run_layer(2)
    assert reader.read(exactly=True).bits[:, -1].tolist() == [[0xFF]] * LAYERS


def test_after_a_reset_only_what_came_later_is_read():
    steps = Steps(8, 8)
    reader = RingReader(steps.ring, steps.totals)
    steps.run(5)
    reader.read()
    steps.totals.zero_()
    steps.ring.start_over()
    steps.run(2)
    routed = reader.read(exactly=True)
    assert (routed.lost, routed.bits.shape[1]) == (0, 2)
    assert np.array_equal(next(routed.memberships()), steps.needed[5])


def test_a_histogram_says_what_it_has_missed():
    steps = Steps(16, 8)
    histogram = RoutingHistogram(RingReader(steps.ring, steps.totals), LAYERS, 16, half_life_steps=None)
    steps.run(4)
    assert histogram.catch_up(exactly=True) == 4
    steps.run(11)
    assert histogram.catch_up(exactly=True) == 8
    assert (histogram.steps, histogram.lost) == (12, 3)
    assert [curve.references for curve in histogram.curves()] == [
        sum(step[layer].sum() for step in steps.needed[:4] + steps.needed[7:]) for layer in range(LAYERS)
    ]


@pytest.mark.parametrize("ring_steps", [0, 1, 12])
def test_a_length_that_is_no_power_of_two_is_refused(ring_steps):
    with pytest.raises(ConfigError, match="power of two"):
        RoutingRing(1, 8, torch.device("cpu"), steps=ring_steps)
