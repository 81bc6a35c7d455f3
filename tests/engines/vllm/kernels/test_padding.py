"""Which of vLLM's routers give experts to the padding of a graph, and what is made of it."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from vllm.forward_context import override_forward_context  # noqa: E402
from vllm.model_executor.layers.fused_moe.router import router_factory  # noqa: E402

from wisp.engines.vllm.kernels import padding  # noqa: E402

GROUPS = {"use_grouped_topk": True, "num_expert_group": 4, "topk_group": 2}
ONE_GROUP = {"use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1}


@pytest.fixture
def is_routed(monkeypatch):
    """`is_routed(**what a model says of its routing)`, by the router that vLLM takes for it on a GPU."""
    monkeypatch.setattr(router_factory, "current_platform", SimpleNamespace(is_cpu=lambda: False))

    def is_routed(**how):
        router = router_factory.create_fused_moe_router(4, 16, **how)
        layers = {"layer": SimpleNamespace(router=router)}
        config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
        return padding.is_routed(config, "layer")

    return is_routed


@pytest.mark.parametrize(
    ("how", "routed"),
    [
        ({}, False),
        ({"e_score_correction_bias": torch.zeros(16), "scoring_func": "sigmoid"}, False),
        (ONE_GROUP, False),
        (GROUPS, True),
        ({**GROUPS, "e_score_correction_bias": torch.zeros(16), "scoring_func": "sigmoid"}, True),
        ({"custom_routing_function": print}, True),
    ],
)
def test_routers_that_mark_no_padding_are_known(is_routed, how, routed):
    assert is_routed(**how) is routed


def test_without_vllm_s_mask_nothing_can_be_told_from_padding(is_routed, monkeypatch):
    monkeypatch.setenv("VLLM_MOE_SKIP_PADDING", "0")
    assert not is_routed(**GROUPS)


def test_padding_takes_the_experts_of_the_first_token():
    ids = torch.tensor([[3, 1], [0, 2], [7, 6], [5, 4]])
    mask = torch.tensor([False, False, True, True, True])  # of a larger step
    with override_forward_context(SimpleNamespace(is_padding=mask)):
        assert padding.routed_as_first(ids).tolist() == [[3, 1], [0, 2], [3, 1], [3, 1]]
    with override_forward_context(SimpleNamespace(is_padding=None)):
        assert padding.routed_as_first(ids) is ids
