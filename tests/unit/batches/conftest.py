"""Fixtures for the tests of batches: a worker with a temporary volume that polls often."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.batches import BatchWorker
from support.engine.scripted import ScriptedEngine, tokens


@pytest.fixture
def batch_worker(tmp_path: Path) -> Iterator[BatchWorker]:
    with ScriptedEngine(*tokens("a")) as engine:
        yield BatchWorker(tmp_path, engine)


@pytest.fixture(autouse=True)
def _poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("long_work.runner", "batches.run"):
        monkeypatch.setattr(f"worker.{name}.POLL_S", 0.02)
    monkeypatch.setattr("worker.batches.run.RETRY_DELAYS_S", (0.1, 0.1, 0.1))
