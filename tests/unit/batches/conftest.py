"""A worker with a volume of the test's own, which looks around often."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.batches import Batching
from support.engine.scripted import ScriptedEngine, tokens


@pytest.fixture
def batching(tmp_path: Path) -> Iterator[Batching]:
    with ScriptedEngine(*tokens("a")) as engine:
        yield Batching(tmp_path, engine)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("long_work.runner", "batches.shard"):
        monkeypatch.setattr(f"worker.{name}.LOOK_S", 0.02)
    monkeypatch.setattr("worker.batches.shard.PAUSES_S", (0.1, 0.1, 0.1))
