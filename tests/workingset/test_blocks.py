"""The histogram of KV blocks equals a replay step by step, at every capacity up to its bound and in any batches."""

from collections import Counter, OrderedDict
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import ConfigError
from wisp.workingset import blocks
from wisp.workingset.blocks import BlockHistogram

REFERENCES = st.lists(st.tuples(st.integers(0, 12), st.sampled_from([0, 0, 0, 1, 3])), max_size=80)
"""A block, and how many steps after the one before."""


def replayed_misses(names, steps, capacity, weights):
    """What an LRU cache of this capacity misses, if each step's blocks are looked up together."""
    cache, misses = OrderedDict(), 0.0
    for _, step in groupby(zip(names, steps, weights, strict=True), key=lambda each: each[1]):
        step = list(step)
        within = set()
        for name, _, weight in step:
            misses += weight * (name not in cache and name not in within)
            within.add(name)
        for name, _, _ in step:
            cache[name] = None
            cache.move_to_end(name)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return misses


def observed(references, batch, **options):
    """Shown one by one, in batches that hold every step whole."""
    names, steps = [name for name, _ in references], np.cumsum([later for _, later in references], dtype=int).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BATCH", max(batch, *Counter(steps).values(), 0))
        histogram = BlockHistogram(**options)
    for name, step in zip(names, steps, strict=True):
        histogram.observe(np.array([name], dtype=np.uint64), step)
    return histogram, names, steps


@given(REFERENCES, st.integers(1, 20), st.integers(1, 16))
def test_misses_equal_a_replay(references, batch, max_blocks):
    histogram, names, steps = observed(references, batch, max_blocks=max_blocks, half_life_steps=None)
    curve = histogram.curve()
    assert curve.references == len(names)
    assert curve.steps == (steps[-1] + 1 if steps else 0)
    for capacity in range(1, max_blocks + 1):
        assert curve.misses_at(capacity) == replayed_misses(names, steps, capacity, [1] * len(names))


@given(REFERENCES, st.integers(1, 20), st.floats(0.5, 30), st.integers(0, 9))
def test_with_decay_every_reference_weighs_what_its_age_says(references, batch, half_life, later):
    histogram, names, steps = observed(references, batch, max_blocks=8, half_life_steps=half_life)
    now = (steps[-1] if steps else 0) + later
    curve = histogram.curve(now)
    weights = [0.5 ** ((now - step) / half_life) for step in steps]
    for capacity in (1, 3, 8):
        assert curve.misses_at(capacity) == pytest.approx(replayed_misses(names, steps, capacity, weights))
    assert curve.steps == pytest.approx(sum(0.5 ** (age / half_life) for age in range(now + 1)))


@pytest.mark.parametrize("max_blocks", [50, 400])
def test_many_references_at_once_equal_a_replay(max_blocks):
    names = np.random.default_rng(5).zipf(1.2, 5_000) % 600
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BATCH", 1_000)
        histogram = BlockHistogram(max_blocks=max_blocks, half_life_steps=None)
    hashes = names.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    steps = np.arange(len(names)) // 70
    for step in range(steps[-1] + 1):
        histogram.observe(hashes[steps == step], step)
    curve = histogram.curve()
    for capacity in (1, 10, max_blocks):
        assert curve.misses_at(capacity) == replayed_misses(names.tolist(), steps, capacity, [1] * len(names))


def test_a_step_that_no_batch_holds_is_counted_as_several():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BATCH", 2)
        histogram = BlockHistogram(max_blocks=2, half_life_steps=None)
    histogram.observe(np.array([0, 1, 2, 0], dtype=np.uint64), 0)
    assert histogram.curve().misses.tolist() == [4, 4, 3]  # in one step one block would suffice for the last


def test_memory_is_bounded_whatever_it_is_shown():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BATCH", 100)
        histogram = BlockHistogram(max_blocks=10)
    histogram.observe(np.arange(10_000, dtype=np.uint64), 0)
    assert len(histogram._stack) == 10
    assert len(histogram._waiting) == 100
    assert histogram.curve().miss_ratio(10) == 1.0


def test_what_is_shown_may_be_overwritten_later():
    histogram, names = BlockHistogram(half_life_steps=None), np.array([1, 1], dtype=np.uint64)
    histogram.observe(names, 0)
    names[:] = 2, 3
    assert histogram.curve().misses_at(1) == 1


def test_what_makes_no_sense_is_refused():
    histogram = BlockHistogram()
    histogram.observe(np.zeros(1, dtype=np.uint64), 3)
    with pytest.raises(ConfigError, match="step 2 after step 3"):
        histogram.observe(np.zeros(1, dtype=np.uint64), 2)
    with pytest.raises(ConfigError, match="step 2 is over"):
        histogram.curve(2)
    with pytest.raises(ConfigError, match="not int64"):
        histogram.observe(np.zeros(1, dtype=np.int64), 4)
    with pytest.raises(ConfigError, match="max_blocks is 0"):
        BlockHistogram(max_blocks=0)
    with pytest.raises(ConfigError, match="half_life_steps"):
        BlockHistogram(half_life_steps=0)
