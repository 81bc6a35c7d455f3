"""Settings that make no sense are refused, each with what would."""

from types import SimpleNamespace

import pytest

from wisp.engines.vllm.settings import WispSettings
from wisp.errors import ConfigError, UnknownPolicyError


def test_the_slots_alone_are_enough():
    assert WispSettings.parse({"expert_slots": 16}) == WispSettings(expert_slots=16, policy="lru", page_lock="auto")


@pytest.mark.parametrize("slots", [0, -1, -16])
def test_slots_below_one_are_refused(slots):
    with pytest.raises(ConfigError, match=f"expert_slots must be 1 or more, not {slots}"):
        WispSettings.parse({"expert_slots": slots})


@pytest.mark.parametrize("slots", ["16", 16.0, None, True, [16], {"a": 1}, float("nan")])
def test_slots_that_are_no_whole_number_are_refused(slots):
    with pytest.raises(ConfigError, match="expert_slots must be a whole number"):
        WispSettings.parse({"expert_slots": slots})


@pytest.mark.parametrize("raw", [None, 16, "16", [], [16], True])
def test_what_is_no_object_is_refused(raw):
    with pytest.raises(ConfigError, match="must be an object such as"):
        WispSettings.parse(raw)


@pytest.mark.parametrize("store", ["", "Memory", "file", None, True])
def test_a_backing_store_of_no_kind_is_refused(store):
    with pytest.raises(ConfigError, match="backing_store must be one of memory, checkpoint, not"):
        WispSettings.parse({"expert_slots": 4, "backing_store": store})


def test_without_slots_and_budget_it_is_refused():
    with pytest.raises(ConfigError, match=r"lacks expert_slots.* and gpu_memory"):
        WispSettings.parse({"policy": "lru"})


def test_a_budget_alone_is_to_be_divided():
    settings = WispSettings.parse({"gpu_memory": "24GiB", "conversations": 9})
    assert settings.plans
    assert settings.gpu_memory_bytes == 24 * 2**30


def test_slots_beside_a_budget_are_not_chosen():
    settings = WispSettings.parse({"gpu_memory": "24GiB", "expert_slots": 8})
    assert not settings.plans
    assert settings.gpu_memory_bytes == 24 * 2**30


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        ("24", "gpu_memory 24GiB"),
        ("-1", "not a size"),
        ("24GB", "write 24GiB if"),
        ("24G", "not a size"),
        (24, "gpu_memory 24GiB"),
        (True, "size"),
    ],
)
def test_a_budget_that_is_no_size_is_refused(budget, told):
    with pytest.raises(ConfigError, match=told):
        WispSettings.parse({"gpu_memory": budget})


def test_host_memory_without_a_unit_is_refused():
    with pytest.raises(ConfigError, match="host_memory 100 would be 100 bytes; write the unit, as in host_memory 100G"):
        WispSettings.parse({"expert_slots": 4, "host_memory": "100"})


@pytest.mark.parametrize("given", [{"conversations": 4}, {"trace": "t.npz"}, {"calibration": "c.json"}])
def test_what_is_for_planning_is_refused_where_nothing_is_planned(given):
    with pytest.raises(ConfigError, match="which is not asked for"):
        WispSettings.parse({"expert_slots": 4, **given})


@pytest.mark.parametrize(
    "given",
    [
        {"conversations": 0},
        {"conversations": -4},
        {"conversations": True},
        {"conversations": "4"},
        {"trace": 1},
        {"calibration": ""},
    ],
)
def test_planning_by_nonsense_is_refused(given):
    with pytest.raises(ConfigError, match=f"{next(iter(given))} must be"):
        WispSettings.parse({"gpu_memory": "24GiB", **given})


@pytest.mark.parametrize("name", ["slots", "expert-slots", "Expert_Slots", ""])
def test_an_unknown_setting_is_refused(name):
    with pytest.raises(ConfigError, match=f"unknown wisp setting {name!r}; known are backing_store, .*expert_slots"):
        WispSettings.parse({"expert_slots": 4, name: 4})


def test_unknown_settings_of_several_types_are_refused():
    with pytest.raises(ConfigError, match="unknown wisp setting"):
        WispSettings.parse({"expert_slots": 4, "x": 1, 2: 3})


@pytest.mark.parametrize("policy", ["mru", "LRU", "belady", "", None, 3, ["lru"]])
def test_an_unknown_policy_is_refused(policy):
    with pytest.raises(UnknownPolicyError, match="known are lru, lfru, least_stale, fifo"):
        WispSettings.parse({"expert_slots": 4, "policy": policy})


@pytest.mark.parametrize("page_lock", ["yes", True, None, 1, {}])
def test_an_unknown_page_lock_is_refused(page_lock):
    with pytest.raises(ConfigError, match="page_lock must be one of auto, require, off"):
        WispSettings.parse({"expert_slots": 4, "page_lock": page_lock})


@pytest.mark.parametrize("value", ["no", "false", 1, 0, None])
def test_experts_are_not_broken_by_a_word(value):
    with pytest.raises(ConfigError, match="break_expert must be true or false"):
        WispSettings.parse({"expert_slots": 4, "break_expert": value})


@pytest.mark.parametrize("extra", [{}, {"other": {"expert_slots": 4}}, None])
def test_without_the_key_paging_is_off(extra):
    assert WispSettings.of(SimpleNamespace(additional_config=extra)) is None


@pytest.mark.parametrize("key", ["Wisp", "WISP", "wips", "wsp", "whisp", "wisp_moe"])
@pytest.mark.parametrize("beside", [{}, {"wisp": {"expert_slots": 4}}])
def test_a_misspelled_key_is_refused_rather_than_off(key, beside):
    with pytest.raises(ConfigError, match=f"the key '{key}'; wisp reads 'wisp'"):
        WispSettings.of(SimpleNamespace(additional_config={key: {"expert_slots": 4}, **beside}))


@pytest.mark.parametrize("name", ["expert_slots", "gpu_memory"])
def test_settings_without_the_key_are_refused_rather_than_off(name):
    with pytest.raises(ConfigError, match=f'write {{"wisp": {{"{name}": ...}}}}'):
        WispSettings.of(SimpleNamespace(additional_config={name: 4}))


def test_other_keys_are_left_alone():
    extra = {"other": 5, "wisp": {"expert_slots": 4}}
    assert WispSettings.of(SimpleNamespace(additional_config=extra)) == WispSettings(4)


def test_an_empty_configuration_is_refused_rather_than_off():
    with pytest.raises(ConfigError, match="must be an object"):
        WispSettings.of(SimpleNamespace(additional_config={"wisp": None}))
    with pytest.raises(ConfigError, match="lacks expert_slots"):
        WispSettings.of(SimpleNamespace(additional_config={"wisp": {}}))


def test_slots_are_compared_with_the_models_experts():
    WispSettings(16).check_model(16, 4, waves_by_expert=False)
    WispSettings(4).check_model(16, 4, waves_by_expert=False)
    WispSettings(1).check_model(16, 4, waves_by_expert=True)
    with pytest.raises(ConfigError, match=r"expert_slots is 17 but .* has 16 experts; set it to 16 or less"):
        WispSettings(17).check_model(16, 4, waves_by_expert=True)
    with pytest.raises(
        ConfigError, match=r"expert_slots is 3 but a token .* needs 4 .*; set expert_slots to 4 or more"
    ):
        WispSettings(3).check_model(16, 4, waves_by_expert=False)
