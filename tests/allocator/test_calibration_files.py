"""A calibration is found again by machine and model, and by no other."""

from dataclasses import replace

import pytest

from wisp.allocator import STATED, calibration_files, machine
from wisp.allocator.calibration_files import find, installed_versions, path_for
from wisp.errors import ConfigError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "wisp" / "calibrations"


def kept(**changes):
    calibration = replace(STATED, **changes)
    path = path_for(calibration.machine, calibration.model)
    path.parent.mkdir(parents=True, exist_ok=True)
    calibration.save(path)
    return path


def test_files_of_another_wisp_are_not_found(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine, model = "A GPU", "a model"
    path = path_for(machine, model)
    path.parent.mkdir(parents=True)
    path.write_text("written by a wisp of before")
    monkeypatch.setattr(calibration_files, "VERSION", calibration_files.VERSION + 1)
    assert find(machine, model) is None


def test_it_is_found_by_machine_and_model_alone(cache):
    path = kept()
    assert path.parent == cache
    assert path.name.startswith("nvidia-h200-qwen3-moe-")
    assert find(STATED.machine, STATED.model) == STATED
    assert find("NVIDIA L4", STATED.model) is None
    assert find(STATED.machine, STATED.model + " more") is None


def test_a_file_cut_short_is_named(cache):
    path = kept()
    path.write_text(path.read_text()[:200])
    with pytest.raises(ConfigError, match=r"calibrations/nvidia-h200.* cannot be read"):
        find(STATED.machine, STATED.model)


def test_versions_are_those_that_are_installed():
    assert set(installed_versions()) <= {"wisp", "vllm", "torch"}


def test_the_gpu_is_read_from_its_driver(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_GPUS", tmp_path)
    assert machine.gpu_name() is None
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA L4\nIRQ:   1\n")
    assert machine.gpu_name() == "NVIDIA L4"


def test_the_cpu_is_read_from_the_system(monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n")
    monkeypatch.setattr(machine, "_CPUS", tmp_path / "cpuinfo")
    assert machine.cpu_name().startswith("A CPU @ 2 GHz, ")
    monkeypatch.setattr(machine, "_CPUS", tmp_path / "nothing")
    assert machine.cpu_name().startswith("a CPU of ")


@pytest.mark.parametrize(("answer", "has"), [("echo 23034", 23034 << 20), ("echo none", None), ("exit 9", None)])
def test_the_gpus_memory_is_asked_of_its_driver(monkeypatch, tmp_path, answer, has):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{answer}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(machine, "gpu_name", lambda: None)
    assert machine.gpu_bytes() is None
    monkeypatch.setattr(machine, "gpu_name", lambda: "NVIDIA L4")
    assert machine.gpu_bytes() == has
    monkeypatch.setenv("PATH", "")
    assert machine.gpu_bytes() is None
