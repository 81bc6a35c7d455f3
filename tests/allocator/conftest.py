"""Public architecture numbers of the models of the paper, as configurations."""

import json
from pathlib import Path

import pytest

from wisp.allocator import ModelShape, read_model_shape

CONFIGS = Path(__file__).parent / "configs"


@pytest.fixture
def shape():
    """`shape("mixtral-8x7b")`: what is known of the model."""

    def read(name: str) -> ModelShape:
        return read_model_shape(CONFIGS / f"{name}.json")

    return read


@pytest.fixture
def config():
    """`config("mixtral-8x7b")`: the configuration itself."""

    def read(name: str) -> dict[str, object]:
        return json.loads((CONFIGS / f"{name}.json").read_text())

    return read
