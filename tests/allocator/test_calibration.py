"""A calibration comes back as it was saved, and says of what it is."""

import json
from dataclasses import replace

import pytest

from wisp.allocator import STATED, Calibration
from wisp.errors import ConfigError


def test_it_comes_back_as_it_was_saved(tmp_path):
    path = tmp_path / "c.json"
    mine = replace(
        STATED,
        machine="NVIDIA L4",
        device_bytes=24 * 2**30,
        fault_bytes_per_second=20e9,
        prefill=((128, 0.06), (512, 0.07)),
        notes=("told",),
        measured={"expert_slots": 16},
    )
    mine.save(path)
    assert Calibration.load(path) == mine


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: c.pop("format"), "not a calibration"),
        (lambda c: c.update(version=4), "version 4 .* upgrade"),
        (lambda c: c.update(version=2), "version 2 .* calibrate anew"),
        (lambda c: c.update(prefill=[[512, 0.1], [128, 0.1]]), "ascending"),
        (lambda c: c.update(prefill=[[128, 0.1], [128, 0.2]]), "each once"),
        (lambda c: c.update(prefill=[[128, "long"]]), "pairs"),
        (lambda c: c.update(prefill=[[512]]), "damaged"),
        (lambda c: c.update(versions=["0.32.0"]), "versions"),
        (lambda c: c.update(versions={"vllm": 0.32}), "versions"),
        (lambda c: c.update(prefill=4), "damaged"),
        (lambda c: c.update(sequence_seconds=-1), "sequence_seconds"),
        (lambda c: c.update(engine=""), "engine"),
        (lambda c: c.pop("layer_seconds"), "lacks 'layer_seconds'"),
        (lambda c: c.update(warp=9), "unknown 'warp'"),
        (lambda c: c.update(layer_seconds=0), "layer_seconds"),
        (lambda c: c.update(stream_bytes_per_second="fast"), "stream_bytes_per_second"),
        (lambda c: c.update(fault_bytes_per_second=float("nan")), "fault_bytes_per_second"),
        (lambda c: c.update(machine=""), "machine"),
        (lambda c: c.update(device="tpu"), "device of a calibration must be cuda or cpu"),
        (lambda c: c.pop("device"), "lacks 'device'"),
    ],
)
def test_a_file_that_is_not_one_is_refused(tmp_path, change, told):
    path = tmp_path / "c.json"
    STATED.save(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=told) as error:
        Calibration.load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_text_that_is_no_object_is_refused(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="calibrate anew"):
        Calibration.load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no calibration"):
        Calibration.load(tmp_path / "c.json")


def test_another_machine_or_model_is_named():
    assert STATED.warnings(STATED.machine, STATED.model) == []
    assert STATED.warnings(None, STATED.model) == []
    machine, model = STATED.warnings("NVIDIA L4", "olmoe")
    assert "NVIDIA H200" in machine
    assert "NVIDIA L4" in machine
    assert STATED.model in model
    assert "olmoe" in model


def test_a_file_cut_short_is_refused(tmp_path):
    path = tmp_path / "c.json"
    STATED.save(path)
    path.write_text(path.read_text()[:-40])
    with pytest.raises(ConfigError, match="calibrate anew"):
        Calibration.load(path)


def test_very_different_versions_are_named():
    assert STATED.warnings(None, STATED.model, {"vllm": "0.32.9", "torch": "2.13.1", "other": "1"}) == []
    (told,) = STATED.warnings(None, STATED.model, {"vllm": "0.33.0"})
    assert "vllm 0.32.0" in told
    assert "0.33.0 is installed" in told


@pytest.mark.parametrize("made_on", ["cuda", "cpu"])
@pytest.mark.parametrize("wanted", ["cuda", "cpu"])
def test_rates_of_another_kind_of_device_are_refused(made_on, wanted):
    mine = replace(STATED, device=made_on)
    if made_on == wanted:
        mine.check_device(wanted)
        return
    with pytest.raises(ConfigError, match="leave it out, or give one that wisp calibrate has made on a"):
        mine.check_device(wanted)
