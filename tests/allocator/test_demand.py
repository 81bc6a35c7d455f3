"""Demand: by the prior what its docstring promises, by a trace what a replay counts."""

import numpy as np
import pytest

from wisp.allocator import Workload, model_shape
from wisp.allocator.demand import prior_demand, traced_demand
from wisp.allocator.prior import WARM_STEPS, PriorRouting
from wisp.errors import ConfigError, TraceError
from wisp.simulate import simulate
from wisp.trace import RoutingTrace
from wisp.workingset.footprint import reuse_share

SHAPE = model_shape(
    {
        "model_type": "qwen3_moe",
        "hidden_size": 64,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "vocab_size": 100,
    }
)
WORKLOAD = Workload.typical(1024, 2)


def traced(steps=100, tokens=None, experts=16, layers=3):
    """Each step needs a quarter of the experts."""
    ranks = np.random.default_rng(5).random((layers, steps, experts)).argsort(axis=2).argsort(axis=2)
    member = ranks < experts // 4
    return RoutingTrace.from_membership(member, None if tokens is None else np.asarray(tokens, dtype=np.int64))


def test_the_prior_repeats_what_it_says():
    trace = PriorRouting().trace(128, 8, 1)
    assert np.mean([reuse_share(trace, layer, 1) for layer in range(trace.layers)]) == pytest.approx(0.45, abs=0.02)
    assert np.mean([reuse_share(trace, layer, 8) for layer in range(trace.layers)]) == pytest.approx(0.81, abs=0.02)


@pytest.mark.parametrize(("experts", "top_k", "streams"), [(8, 2, 1), (8, 8, 3), (16, 2, 4), (256, 8, 64)])
def test_the_prior_scales_to_other_models(experts, top_k, streams):
    trace = PriorRouting().trace(experts, top_k, streams)
    assert trace.widths().min() >= top_k
    assert trace.widths().max() <= min(experts, top_k * streams)
    assert trace == PriorRouting().trace(experts, top_k, streams)


class ByGumbel(PriorRouting):
    """The same choice as its definition says it: the most popular, by logarithms with Gumbel noise."""

    def _choose(self, rng, popularity, age, top_k):
        score = np.log(popularity) + rng.gumbel(size=age.shape)
        score = np.where((age >= 2) & (age <= 8), score + self.recent_bonus, score)
        stays = rng.random(age.shape) < self.stay
        score = np.where(age == 1, np.where(stays, np.inf, -np.inf), score)
        return np.argsort(-score, axis=-1, kind="stable")[..., :top_k]


@pytest.mark.parametrize(("experts", "top_k", "streams"), [(128, 8, 1), (8, 2, 4), (4, 4, 2), (64, 6, 16)])
def test_the_prior_chooses_as_gumbel_s_maximum_does(experts, top_k, streams):
    assert PriorRouting().trace(experts, top_k, streams) == ByGumbel().trace(experts, top_k, streams)
    assert PriorRouting(recent_bonus=0.0).trace(experts, top_k, streams) == ByGumbel(recent_bonus=0.0).trace(
        experts, top_k, streams
    )
    assert PriorRouting(seed=2).trace(experts, top_k, streams) == ByGumbel(seed=2).trace(experts, top_k, streams)


@pytest.mark.parametrize("slots", [8, 12, 16])
def test_the_priors_misses_are_those_of_a_replay(slots):
    trace = PriorRouting().trace(16, 4, 2)
    faults = simulate(trace, slots).faults[:, WARM_STEPS:].sum(axis=0).mean()
    found = prior_demand(SHAPE, 2).misses_a_step[slots]
    assert found * trace.layers / SHAPE.moe_layers == pytest.approx(faults)


def test_with_a_slot_for_every_expert_nothing_is_missed_however_late_one_is_first_needed():
    member = np.zeros((3, 16, 16), dtype=np.bool_)
    member[:, :15, :4] = member[:, 15, 4:8] = True
    demand = traced_demand(RoutingTrace.from_membership(member), SHAPE, WORKLOAD)
    assert demand.hit_ratio(16) == 1
    assert demand.hit_ratio(15) < 1
    assert (np.diff(demand.misses_a_step) <= 0).all()


def test_decode_steps_alone_are_counted():
    tokens = np.tile([1, 1, 2, 300], 40)
    trace = traced(160, tokens)
    demand = traced_demand(trace, SHAPE, WORKLOAD)
    decodes = tokens <= 2
    kept = RoutingTrace.from_membership(np.stack([trace.membership(layer)[decodes] for layer in range(3)]))
    assert demand.misses_a_step[12] == simulate(kept, 12).faults[:, 120 // 8 :].sum() / (120 - 120 // 8)
    assert demand.streams == pytest.approx(4 / 3)
    assert "120 decode steps" in demand.source


def test_a_trace_without_token_counts_is_taken_whole():
    demand = traced_demand(traced(), SHAPE, WORKLOAD)
    assert "not recorded" in demand.source
    assert 0 < demand.hit_ratio(8) < demand.hit_ratio(16) <= 1


@pytest.mark.parametrize(
    ("trace", "told"),
    [
        (traced(experts=8), "3 layers of 8 experts but the model has 3 of 16"),
        (traced(layers=2), "2 layers of 16 experts"),
        (traced(steps=0), "no steps"),
        (traced(steps=3, tokens=[2, 1, 0]), "step 2 of the trace needs 4 experts of a layer, but its tokens .0."),
        (RoutingTrace.from_steps(16, [[(1, 2, 3)]] * 3), "more than 3 experts of a layer, but a token .* needs 4"),
        (traced(steps=3, tokens=[400, 400, 9]), "none of the trace's 3 steps has 1 to 2 tokens"),
    ],
)
def test_a_trace_that_says_nothing_of_this_model_is_refused(trace, told):
    with pytest.raises(TraceError, match=told):
        traced_demand(trace, SHAPE, WORKLOAD)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"context": 0, "sequences": 1}, "--max-model-len"),
        ({"context": 8, "sequences": 0}, "--max-num-seqs"),
        ({"context": 8, "sequences": 2000}, "1024 at most"),
        ({"context": 8, "sequences": 1, "chunk": 0}, "--max-num-batched-tokens"),
        ({"context": 8, "sequences": 4, "chunk": 3}, "is 3 but 4 sequences decode a token each"),
        ({"context": 8, "sequences": 4, "conversations": 3}, "set it to 4 or more, or --max-num-seqs to 3$"),
        ({"context": 8, "sequences": 4, "conversations": 0}, "set it to 4 or more$"),
    ],
)
def test_a_workload_that_makes_no_sense_is_refused(arguments, told):
    with pytest.raises(ConfigError, match=told):
        Workload.typical(**arguments)


def test_chunks_add_up():
    workload = Workload.typical(8192, 1, chunk=2048)
    assert workload.chunks(5000) == [2048, 2048, 904]
    assert workload.chunks(4096) == [2048, 2048]
    assert workload.chunks(0) == []
