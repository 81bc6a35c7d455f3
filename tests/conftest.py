"""Fixtures for all tests. Tiny checkpoints are made once a session, at their first use."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("wisp", deadline=None)  # a machine that is busy with an engine is slow at times
settings.load_profile("wisp")

sys.path.append(str(Path(__file__).parent))  # for `models` and `workload`
pytest.register_assert_rewrite("workload")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`checkpoint(kind, dtype, **overrides)`: a directory with a tiny model and its tokenizer."""
    made: dict[tuple[object, ...], Path] = {}

    def checkpoint(kind: str = "qwen3_moe", *args: object, **overrides: object) -> Path:
        import models

        key = (kind, *args, *sorted(overrides.items()))
        if key not in made:
            path = tmp_path_factory.mktemp("checkpoints") / kind
            made[key] = models.add_tokenizer(models.make_checkpoint(kind, path, *args, **overrides))
        return made[key]

    return checkpoint
