"""What is not wisp's goes to vLLM word for word, whatever it looks like."""

import json

import pytest

from wisp.cli.forwarding import flag_value

ENGINE_WORDS = [
    ["--port", "8000"],
    ["--port=8000"],
    ["-tp", "2"],
    ["-O3"],
    ["-cc.mode", "none"],
    ["--seed", "-1"],
    ["--enable-prefix-caching", "--no-enable-log-requests"],
    ["--additional-config", json.dumps({"other": {"--policy": "a b"}})],
    ["--hf-overrides={'a': 1}"],
    ["--max_model_len", "1k"],
    ["--api-key", ""],
    ["--help=all"],
    ["positional", "--", "after"],
]


@pytest.mark.parametrize("words", ENGINE_WORDS, ids=" ".join)
@pytest.mark.parametrize("own_first", [True, False])
def test_flags_of_the_engine_pass_through_untouched(wisp, model, words, own_first):
    own = ["--expert-slots", "8", "--policy=lfru"]
    ended = wisp("serve", model, *(own + words if own_first else words + own))
    (started,) = ended.started
    arguments, settings, _ = started
    assert arguments == [str(model), *words]
    assert (settings.expert_slots, settings.policy) == (8, "lfru")


def test_own_options_may_stand_before_the_model_and_have_underscores(wisp, model):
    ended = wisp("serve", "--expert_slots", 4, "--page_lock=off", "--device=cpu", model, "--port", 1)
    arguments, settings, device = ended.started[0]
    assert arguments == [str(model), "--port", "1"]
    assert (settings.expert_slots, settings.page_lock, device) == (4, "off", "cpu")


@pytest.mark.parametrize("words", [[], ["--port", "1"]])
def test_an_option_without_its_value_is_told(wisp, model, words):
    ended = wisp("serve", model, *words, "--expert-slots")
    assert ended.code == 2
    assert "'--expert-slots' requires an argument" in ended.err


def test_a_flag_in_the_place_of_the_model_is_refused(wisp, model):
    ended = wisp("serve", "--port", 8000, model, "--expert-slots", 4)
    assert ended.code == 2
    assert "name the model first" in ended.err
    assert not ended.started


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], None),
        (["--other"], None),
        (["--flag", "1"], "1"),
        (["--flag=1"], "1"),
        (["--flag"], ""),
        (["--flag", "1", "--flag=2"], "2"),
        (["--fl-ag", "1"], None),
    ],
)
def test_flag_value_finds_the_last_value(words, value):
    assert flag_value(words, "--flag") == value


def test_flag_value_reads_underscores_as_dashes():
    assert flag_value(["--cpu_offload_gb=4"], "--cpu-offload-gb") == "4"
