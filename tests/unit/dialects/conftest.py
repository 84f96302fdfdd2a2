"""A scripted engine for each test, a second one for embeddings, and a caller with a volume."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.caller import Caller
from support.engine.scripted import ScriptedEngine

from worker.engine import Model


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """Tests set what they need of it: script, app, model, adapters."""
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
    """A caller of a worker that starts no long work."""
    return Caller(engine, tmp_path / "volume")
