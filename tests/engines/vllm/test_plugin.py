"""The plug-in registers once, and touches no vLLM that it was not tested with."""

import sys
from importlib.metadata import entry_points

import pytest

vllm = pytest.importorskip("vllm")

from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts  # noqa: E402
from vllm.plugins import load_general_plugins  # noqa: E402

from wisp.engines.vllm import plugin  # noqa: E402
from wisp.errors import UnsupportedError  # noqa: E402

pytestmark = pytest.mark.engine
PATCHED = {"create_engine_config": EngineArgs, "__init__": RoutedExperts, "register_oot": RoutedExperts}


@pytest.fixture
def fresh(monkeypatch):
    """The plug-in as before its first call; what it patches is put back afterwards."""
    load_general_plugins()  # vLLM does so once a process, at a time of its choice
    monkeypatch.setattr(plugin, "_registered", False)
    for name, owner in PATCHED.items():
        monkeypatch.setattr(owner, name, getattr(owner, name))
    calls = []
    monkeypatch.setattr(RoutedExperts, "register_oot", lambda cls: calls.append(cls.__name__))
    return calls


def patched():
    return {name: getattr(owner, name) for name, owner in PATCHED.items()}


def test_vllm_finds_it():
    (entry,) = (entry for entry in entry_points(group="vllm.general_plugins") if entry.name == "wisp")
    assert entry.load() is plugin.register


def test_registering_again_changes_nothing(fresh):
    plugin.register()
    assert fresh == ["PagedRoutedExperts"]
    once = patched()
    plugin.register()
    assert patched() == once
    assert fresh == ["PagedRoutedExperts"]


def test_an_untested_version_is_left_alone_until_wisp_is_configured(fresh, monkeypatch, checkpoint):
    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    monkeypatch.setitem(sys.modules, "wisp.engines.vllm.layer", None)  # as if vLLM had moved what it imports
    init = RoutedExperts.__init__
    plugin.register()
    assert not fresh
    assert RoutedExperts.__init__ is init
    args = {"model": str(checkpoint("qwen3_moe")), "dtype": "bfloat16", "skip_tokenizer_init": True}
    EngineArgs(**args).create_engine_config()
    with pytest.raises(UnsupportedError, match=r"from 0\.32\.0 to below 0\.33\.0, not 0\.33\.0"):
        EngineArgs(**args, additional_config={"wisp": {"expert_slots": 5}}).create_engine_config()


def test_routes_are_added_only_where_a_setting_asks_for_them(fresh, monkeypatch, checkpoint):
    from vllm import plugins

    from wisp.engines.vllm.patches import endpoints

    monkeypatch.setattr(plugins, "load_endpoint_plugins", lambda _tasks: ["another"])
    monkeypatch.setattr(endpoints, "_make", None)
    plugin.register()
    args = {"model": str(checkpoint("qwen3_moe")), "dtype": "bfloat16", "skip_tokenizer_init": True}
    for settings in ({}, {"recordable": False}):
        EngineArgs(**args, additional_config={"wisp": {"expert_slots": 5, **settings}}).create_engine_config()
        assert plugins.load_endpoint_plugins(()) == ["another"]
    for settings in ({"recordable": True}, {"measure": True}):
        EngineArgs(**args, additional_config={"wisp": {"expert_slots": 5, **settings}}).create_engine_config()
        another, own = plugins.load_endpoint_plugins(())
        assert another == "another"
        assert vars(own._settings) | settings == vars(own._settings)
