"""What `wisp verify` makes of its words before any engine starts."""

import json

import pytest

from wisp.cli.verify import _check_compile_cache, _slot_counts, _workload
from wisp.errors import ConfigError, VerifyError


def test_prompts_are_lines_of_text_or_the_turns_of_conversations(tmp_path):
    text, script = tmp_path / "prompts.txt", tmp_path / "prompts.json"
    text.write_text("One\n\nTwo\n")
    script.write_text(json.dumps({"conversations": [{"domain": "prose", "turns": ["One", "Two"]}]}))
    lines, turns = _workload(4, text), _workload(4, script)
    assert lines == turns
    assert [arrival.text for arrival in lines.arrivals if arrival.step == 0] == ["One", "Two"]


def test_slots_that_the_model_lacks_are_told_before_any_engine_starts(wisp, model):
    ended = wisp("verify", model, "--slots", "4,17")
    assert ended.code == 2
    assert "--slots is 17 but a layer" in ended.err
    assert ended.err.count("\n") == 1


def test_a_missing_vllm_is_no_difference(wisp, model, monkeypatch):
    monkeypatch.setattr("wisp.cli.preflight.find_spec", lambda _: None)
    ended = wisp("verify", model, "--slots", "4")
    assert ended.code == 2
    assert "vLLM is not installed" in ended.err


def test_what_was_compared_is_shown_although_a_later_engine_fails(wisp, model, monkeypatch):
    pytest.importorskip("vllm")
    from wisp.engines.vllm.verify.arm import Answer, ArmResult
    from wisp.engines.vllm.verify.compare import run_arm

    def answer(model, settings, *_, **__):
        if settings and settings["expert_slots"] == 8:
            raise VerifyError("the engine ended with code 1")
        return ArmResult([Answer([7], [{"7": -0.5}], 0)], [], {"references": 4.0, "faults": 1.0}, 1.0)

    monkeypatch.setattr(f"{run_arm.__module__}.run_arm", answer)
    ended = wisp("verify", model, "--slots", "4,8,12")
    assert ended.code == 2
    assert ended.err.endswith("wisp: the engine ended with code 1\n")
    assert [line.split()[0] for line in ended.out.splitlines() if "identical" in line] == ["4"]


def test_slots_are_1_or_more():
    assert _slot_counts("8,4") == [4, 8]
    with pytest.raises(ConfigError, match="1 or more, not 0"):
        _slot_counts("0,8")


@pytest.mark.parametrize("more", [(), ("--clients", "2")])
def test_engines_that_would_each_compile_the_model_by_themselves_are_not_compared(wisp, model, monkeypatch, more):
    pytest.importorskip("vllm")
    monkeypatch.setenv("VLLM_DISABLE_COMPILE_CACHE", "1")
    ended = wisp("verify", model, "--slots", "4", *more)
    assert ended.code == 2
    assert "unset it, or compare with --enforce-eager" in ended.err


def test_the_compile_cache_may_be_off_where_nothing_is_compiled(monkeypatch):
    monkeypatch.setenv("VLLM_DISABLE_COMPILE_CACHE", "1")
    _check_compile_cache(("--enforce-eager",))
    monkeypatch.setenv("VLLM_DISABLE_COMPILE_CACHE", "0")
    _check_compile_cache(())
