"""The plain engine computes the same bits for every number of slots."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from wisp.engines.plain import PagedMoE
from wisp.errors import ConfigError, UnknownPolicyError
from wisp.policies import POLICIES
from wisp.simulate import simulate
from wisp.trace import RoutingTrace

EXPERTS, TOP_K = 8, 3
every_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])


def make_weights(dtype, hidden=32, inner=16, seed=0):
    random = torch.Generator().manual_seed(seed)
    w13 = torch.randn(EXPERTS, 2 * inner, hidden, generator=random).to(dtype)
    w2 = torch.randn(EXPERTS, hidden, inner, generator=random).to(dtype)
    return w13, w2


def make_steps(dtype, token_counts, hidden=32, seed=1):
    """Inputs of several steps: (x, topk_ids, topk_weights)."""
    random = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(tokens, hidden, generator=random).to(dtype),
            torch.rand(tokens, EXPERTS, generator=random).topk(TOP_K).indices,
            torch.rand(tokens, TOP_K, generator=random).softmax(-1),
        )
        for tokens in token_counts
    ]


def bits(tensor):
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)


def outputs(weights, steps, **kwargs):
    layer = PagedMoE(*weights, **kwargs)
    return [bits(layer.forward(*step)) for step in steps]


@every_dtype
@given(slots=st.integers(1, EXPERTS), token_counts=st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_every_number_of_slots_gives_the_same_bits(dtype, slots, token_counts):
    weights, steps = make_weights(dtype), make_steps(dtype, token_counts)
    expected = outputs(weights, steps, slots=EXPERTS)
    assert all(map(torch.equal, outputs(weights, steps, slots=slots), expected))


@every_dtype
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_the_same_bits(dtype, policy):
    weights, steps = make_weights(dtype), make_steps(dtype, [1, 7, 1, 1, 30, 2] * 4)
    expected = outputs(weights, steps, slots=EXPERTS)
    assert all(map(torch.equal, outputs(weights, steps, slots=3, policy=policy), expected))


@every_dtype
@given(hidden=st.integers(1, 40), inner=st.integers(1, 24), slots=st.integers(1, EXPERTS), seed=st.integers(0, 99))
def test_no_shape_of_an_expert_depends_on_its_slot(dtype, hidden, inner, slots, seed):
    """As far as the CPU's own products do not: an AMD EPYC's add float32 by where it lies within 16 bytes."""
    assume(dtype.itemsize == 2 or hidden * inner * dtype.itemsize % 16 == 0)
    weights, steps = make_weights(dtype, hidden, inner, seed), make_steps(dtype, [5, 1, 6], hidden, seed)
    expected = outputs(weights, steps, slots=EXPERTS)
    assert all(map(torch.equal, outputs(weights, steps, slots=slots), expected))


def test_it_computes_a_mixture_of_experts():
    (w13, w2), ((x, ids, weights),) = make_weights(torch.float32), make_steps(torch.float32, [6])
    w13, w2 = w13 / 8, w2 / 8
    expected = torch.zeros_like(x)
    for token in range(6):
        for expert, weight in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            gate, up = (w13[expert] @ x[token]).chunk(2)
            expected[token] += weight * (w2[expert] @ (torch.nn.functional.silu(gate) * up))
    torch.testing.assert_close(PagedMoE(w13, w2, slots=2).forward(x, ids, weights), expected)


def test_a_wrong_expert_changes_the_output():
    weights, steps = make_weights(torch.bfloat16), make_steps(torch.bfloat16, [6])
    (expected,) = outputs(weights, steps, slots=3)
    layer = PagedMoE(*weights, slots=3)
    load = layer.pager.pool.load
    layer.pager.pool.load = lambda expert, slot: load((expert + 1) % EXPERTS, slot)
    assert not torch.equal(bits(layer.forward(*steps[0])), expected)


def test_it_faults_as_simulated():
    weights, steps = make_weights(torch.bfloat16), make_steps(torch.bfloat16, [1, 2, 9, 1, 1, 4] * 5)
    layer = PagedMoE(*weights, slots=4)
    for step in steps:
        layer.forward(*step)
    replay = simulate(RoutingTrace.from_steps(EXPERTS, [[set(ids.flatten().tolist()) for _, ids, _ in steps]]), 4)
    counted = layer.counters.total()
    assert counted["faults"] == replay.total_faults
    assert counted["references"] == replay.total_references
    assert counted["waves"] == replay.waves.sum()
    assert counted["bytes_moved"] == replay.copied_bytes(layer.pager.store.expert_bytes)


def test_the_weights_that_were_handed_over_may_change_afterwards():
    (w13, w2), steps = make_weights(torch.bfloat16), make_steps(torch.bfloat16, [4])
    (expected,) = outputs((w13, w2), steps, slots=2)
    layer = PagedMoE(w13, w2, slots=2)
    w13.zero_()
    assert torch.equal(bits(layer.forward(*steps[0])), expected)


def test_wrong_settings_are_refused():
    weights = make_weights(torch.bfloat16)
    for slots in (0, -1, EXPERTS + 1):
        with pytest.raises(ConfigError, match="between 1 and 8"):
            PagedMoE(*weights, slots=slots)
    with pytest.raises(UnknownPolicyError, match="lru"):
        PagedMoE(*weights, slots=2, policy="mru")
    with pytest.raises(ConfigError, match="replay only"):
        PagedMoE(*weights, slots=2, policy="belady")
