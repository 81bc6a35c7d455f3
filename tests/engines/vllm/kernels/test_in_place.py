"""A step that is computed in place does not meet the copies of one that is streamed."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from wisp.engines.vllm.kernels.in_graph import InGraphKernel  # noqa: E402
from wisp.engines.vllm.kernels.planar import PlanarKernel  # noqa: E402
from wisp.errors import WispError  # noqa: E402


def test_a_layer_that_is_narrower_than_those_streamed_before_it_is_refused_before_it_is_paged():
    def refuse(layer: int) -> None:
        raise WispError(f"layer {layer}")

    paging = SimpleNamespace(stream=SimpleNamespace(check_is_idle=refuse), pagers={1: SimpleNamespace(num_experts=2)})
    paging.pagers[1].layer = 1
    experts = SimpleNamespace(apply=None, moe_sum=None)
    ids, weights = torch.zeros(1, 1), torch.zeros(4, 1)
    with pytest.raises(WispError, match="layer 1"):
        PlanarKernel(experts, paging, 1, 8).run(topk_ids=ids, w1=weights, w2=weights)
    with pytest.raises(WispError, match="layer 1"):
        InGraphKernel(experts, paging, 1, None, 8)._run_in_place({}, ids)
