"""Layers that cannot be paged together on the device are refused, with a remedy that is not refused in its turn."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from wisp.engines.vllm.kernels.base import KINDS  # noqa: E402
from wisp.engines.vllm.layer_checks import check_in_graph, check_on_host  # noqa: E402
from wisp.errors import UnsupportedError  # noqa: E402
from wisp.pager.arena import Arena, ArenaShape  # noqa: E402
from wisp.pager.store import HostStore  # noqa: E402

DYNAMIC_TENSOR_SCALES = SimpleNamespace(
    quant_dtype=torch.float8_e4m3fn, block_shape=None, per_act_token_quant=False, a2_scale=None
)
PLAIN = SimpleNamespace(quant_dtype=None)
KERNELS = [("TritonExperts", PLAIN), ("TritonExperts", DYNAMIC_TENSOR_SCALES), ("MarlinExperts", PLAIN)]


def store(rows):
    return HostStore({"w13_weight": torch.empty(4, rows, 8)})


def is_fed_on_host(kernel, experts):
    try:
        check_on_host(KINDS[kernel], experts)
    except UnsupportedError:
        return False
    return True


@pytest.mark.parametrize(("kernel", "experts"), KERNELS)
@pytest.mark.parametrize(("rows", "is_draft"), [((8, 16), False), ((8, 8), True)])
def test_the_host_is_a_remedy_only_where_it_can_feed_the_kernel(kernel, experts, rows, is_draft):
    with pytest.raises(UnsupportedError) as refused:
        check_in_graph([store(each) for each in rows], KINDS[kernel], experts, is_draft=is_draft)
    assert ("set decide to host" in str(refused.value)) == is_fed_on_host(kernel, experts)
    assert ("leave --speculative-config out" in str(refused.value)) == is_draft


@pytest.mark.parametrize(("rows", "is_draft"), [((8, 8), False), ((8,), True)])
def test_layers_that_are_alike_and_a_draft_of_one_pass(rows, is_draft):
    check_in_graph([store(each) for each in rows], KINDS["TritonExperts"], PLAIN, is_draft=is_draft)


ODD = {"w13_weight": torch.empty(4, 8, 8), "w13_scale": torch.empty(4, dtype=torch.bfloat16)}


@pytest.mark.parametrize(("kernel", "experts"), KERNELS)
def test_broken_words_are_refused_where_an_arena_would_with_a_remedy_that_works(kernel, experts):
    odd = HostStore(ODD)
    with pytest.raises(UnsupportedError, match="w13_scale takes 2 bytes of an expert"):
        Arena(ArenaShape(1, 2, 0), odd.layout, "cpu", planar=True)
    with pytest.raises(UnsupportedError, match="w13_scale takes 2 bytes of an expert") as refused:
        check_in_graph([odd], KINDS[kernel], experts, is_draft=False)
    assert ("set decide to host" in str(refused.value)) == is_fed_on_host(kernel, experts)


def test_broken_words_pass_where_an_expert_is_one_row():
    odd = HostStore({"w13_weight": torch.empty(4, 8, 8), "w13_bias": torch.empty(4, 3, dtype=torch.bfloat16)})
    check_in_graph([odd], KINDS["TritonExperts"], PLAIN, is_draft=False)
    with pytest.raises(UnsupportedError, match="w13_bias takes 6 bytes"):
        check_in_graph([odd], KINDS["MarlinExperts"], PLAIN, is_draft=False)


@pytest.mark.parametrize(("kernel", "experts"), KERNELS[1:])
def test_what_the_host_cannot_feed_is_left_to_the_device(kernel, experts):
    with pytest.raises(UnsupportedError) as refused:
        check_on_host(KINDS[kernel], experts)
    assert str(refused.value).endswith("set decide to auto and policy to lru")
