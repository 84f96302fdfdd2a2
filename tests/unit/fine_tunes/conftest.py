"""Fixtures for the tests of fine-tunes: a temporary volume, and runners that poll often."""

from pathlib import Path

import pytest
from support.engine.scripted import settings
from support.fine_tunes import COMMAND, create_fine_tune
from support.processes.background import HUNG_S

from worker.fine_tunes.record import FineTune, FineTunes


@pytest.fixture
def fine_tunes(tmp_path: Path) -> FineTunes:
    (tmp_path / "inbox").mkdir()
    return FineTunes(settings(FILES_PATH=str(tmp_path), FILES_MAX_MB="1"))


@pytest.fixture
def fine_tune(fine_tunes: FineTunes) -> FineTune:
    return create_fine_tune(fine_tunes)


@pytest.fixture(autouse=True)
def _poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.fine_tunes.step.POLL_S", 0.02)
    monkeypatch.setattr("worker.fine_tunes.step.COMMAND", COMMAND)
    # Longer than any test waits.
    monkeypatch.setattr("worker.fine_tunes.step.CHECKPOINT_S", 10 * HUNG_S)
