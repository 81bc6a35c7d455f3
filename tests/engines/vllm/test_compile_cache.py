"""Code that was compiled once is found again under other settings, and never under those that it depends on."""

import pytest

vllm = pytest.importorskip("vllm")

from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def make_config(checkpoint):
    """The configuration under additional settings."""
    model = str(checkpoint("qwen3_moe"))

    def make(additional, **args):
        common = {"dtype": "bfloat16", "max_model_len": 256, "skip_tokenizer_init": True, "load_format": "dummy"}
        return EngineArgs(model=model, additional_config=additional, **{**common, **args}).create_engine_config()

    return make


def hashes(configs):
    return [config.compute_hash() for config in configs]


def test_other_slots_find_the_same_code(make_config):
    few, many = make_config({"wisp": {"expert_slots": 5}}), make_config({"wisp": {"expert_slots": 9, "measure": True}})
    assert few.compute_hash() == many.compute_hash()
    assert few.additional_config == {"wisp": {"expert_slots": 5}}, "left as it was"


def test_on_a_cpu_the_unpaged_engine_has_code_of_its_own(make_config):
    paged, unpaged = hashes([make_config({"wisp": {"expert_slots": 5}}), make_config({})])
    assert paged != unpaged


def test_on_a_gpu_the_unpaged_engine_has_the_same(make_config, monkeypatch):
    configs = [make_config({"wisp": {"expert_slots": 5}}), make_config({})]
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _self: False)
    paged, unpaged = hashes(configs)
    assert paged == unpaged


def test_whatever_else_is_set_counts_as_before(make_config):
    slots = {"wisp": {"expert_slots": 5}}
    one, other, longer = hashes(
        [make_config({**slots, "else": 1}), make_config({**slots, "else": 2}), make_config(slots, dtype="float16")]
    )
    assert len({one, other, longer, *hashes([make_config(slots)])}) == 4
