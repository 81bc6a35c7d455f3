"""The command line in this process, up to the point where vLLM would start."""

import json
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from wisp.cli.main import main

CONFIG = {"model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 4}


@dataclass
class Ended:
    """How a call ended, and what vLLM would have been started with."""

    code: int
    out: str
    err: str
    started: list[tuple[list[str], Any, str]] = field(default_factory=list)


@pytest.fixture
def wisp(monkeypatch, capsys, tmp_path):
    """`wisp("serve", ...)` runs the command; a stand-in takes the place of the module that imports vLLM."""
    started = []
    stand_in = types.ModuleType("wisp.engines.vllm.serve")
    stand_in.serve = lambda arguments, settings, *, device: started.append((arguments, settings, device))
    monkeypatch.setitem(sys.modules, "wisp.engines.vllm.serve", stand_in)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # no calibration of this machine's

    def run(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["wisp", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        return Ended(end.value.code or 0, *capsys.readouterr(), list(started))

    return run


def write_safetensors(path: Path, *, payload_bytes: int = 64, announced_bytes: int = 64) -> None:
    """One tensor of `announced_bytes`, of which `payload_bytes` are there."""
    header = json.dumps({"weight": {"dtype": "U8", "shape": [announced_bytes], "data_offsets": [0, announced_bytes]}})
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(payload_bytes))


@pytest.fixture
def model(tmp_path) -> Path:
    """A folder that looks like a checkpoint of a model with 16 experts."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_safetensors(folder / "model.safetensors")
    return folder


@pytest.fixture
def qwen_config() -> str:
    """A whole configuration: 128 experts, top-8."""
    return (Path(__file__).parents[1] / "allocator" / "configs" / "qwen3-30b-a3b.json").read_text()
