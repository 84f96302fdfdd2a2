"""Fixtures: a scripted engine for each test, an embedding engine, and a caller with a volume."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.caller import Caller
from support.engine.scripted import ScriptedEngine

from worker.engine import Model


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """An engine on which tests set the script, the app, the model and the adapters."""
    with ScriptedEngine() as engine:
        yield engine


@pytest.fixture
def embedder(engine: ScriptedEngine) -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as embedder:
        embedder.model = Model(("minilm", "org/minilm"), 512, "cpu", frozenset({"embed"}))
        keys = frozenset({"model", "input", "prompt"})
        embedder.bodies = {"/v1/embeddings": keys, "/tokenize": keys}
        engine.embedder = embedder
        yield embedder


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path) -> Caller:
    """A caller of a worker that can't start long work."""
    return Caller(engine, tmp_path / "volume")
