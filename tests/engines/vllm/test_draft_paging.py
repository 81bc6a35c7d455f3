"""Which worker's paging a layer joins: the target's, or its draft model's, which share nothing."""

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from wisp.engines.vllm import workers
from wisp.engines.vllm.settings import WispSettings
from wisp.errors import ConfigError

MODEL = Path(__file__).parents[3] / "demo" / "model"
SETTINGS = WispSettings(expert_slots=6)


@pytest.fixture(autouse=True)
def _no_patch(monkeypatch):
    monkeypatch.setattr(workers.warm_up, "install", lambda _forget: None)


def make_config(name):
    return SimpleNamespace(instance_id=name, compilation_config=SimpleNamespace(static_forward_context={}))


def with_other_parts(config):
    """What vLLM loads a draft model under: a copy with an id of its own and some parts exchanged."""
    return SimpleNamespace(instance_id=f"{config.instance_id}, copied", compilation_config=config.compilation_config)


def join(config, settings=SETTINGS, num_experts=16):
    return workers.for_new_layer(config, settings, num_experts)


def loaded(config):
    """The target's worker, once its layers are paged."""
    target = join(config)
    target.counting.counters = object()
    return target


def test_all_layers_that_are_made_before_any_is_loaded_are_the_targets():
    config = make_config("one")
    target = join(config)
    assert join(config) is join(config) is target
    assert not target.is_draft
    assert target.settings == SETTINGS


@pytest.mark.parametrize("copied", [lambda config: config, with_other_parts], ids=["same", "copied"])
def test_layers_that_are_made_later_are_the_drafts(copied):
    config = make_config("two")
    target = loaded(config)
    draft = join(copied(config))
    assert draft is target.draft is join(copied(config))
    assert draft.is_draft
    assert draft is not target
    assert workers.of_engine(config) is target, "who asks for the engine's paging means the target's"


def test_an_engine_is_found_after_a_server_has_started_it():
    """vLLM checks a server's configuration once more after loading, and that gives it another instance id."""
    from vllm import EngineArgs

    config = EngineArgs(str(MODEL), skip_tokenizer_init=True).create_engine_config()
    target, before = join(config), config.instance_id
    config.__post_init__()
    assert config.instance_id != before
    assert workers.of_engine(config) is target


def test_an_engine_that_pages_nothing_is_not_found():
    assert workers.of_engine(make_config("nothing")) is None


def test_another_engine_in_the_process_is_no_draft():
    target = loaded(make_config("three"))
    other = join(make_config("four"))
    assert not other.is_draft
    assert other is not target
    assert target.draft is None


@pytest.mark.parametrize(
    ("settings", "num_experts", "slots"),
    [(SETTINGS, 16, 6), (SETTINGS, 4, 4), (WispSettings(6, draft_expert_slots=9), 16, 9)],
)
def test_a_draft_takes_its_own_slots_or_the_targets_as_far_as_it_has_experts(settings, num_experts, slots):
    config = make_config("five")
    target = loaded(config)
    assert join(config, settings, num_experts).settings.expert_slots == slots
    assert target.settings.expert_slots == 6


@pytest.mark.parametrize("slots", [0, -1, True, "4", 1.5])
def test_slots_of_a_draft_are_a_number_of_experts(slots):
    with pytest.raises(ConfigError, match="draft_expert_slots must be a whole number of experts, 1 or more"):
        WispSettings(6, draft_expert_slots=slots)


def test_a_drafts_warm_up_is_forgotten_with_the_targets():
    config = make_config("six")
    target = loaded(config)
    forgotten = []
    target.counting.counters = SimpleNamespace(reset=lambda: forgotten.append("target"))
    join(config).counting.counters = SimpleNamespace(reset=lambda: forgotten.append("draft"))
    workers._forget_warm_up(config)
    assert forgotten == ["target", "draft"]


@pytest.mark.engine
def test_target_and_draft_take_turns_on_the_device(run_script):
    """Streamed, in place, and each with counters of its own."""
    result = run_script("run_triton_draft.py")
    assert [all(turn["identical"]) for turn in result["turns"]] == [True] * 7
    assert result["steps"] == {"target": [3, 3], "draft": [4]}
