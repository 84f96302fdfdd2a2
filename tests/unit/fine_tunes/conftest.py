"""Fine-tunes on a volume of the test's own, and runners that look around often."""

from pathlib import Path

import pytest
from support.engine.scripted import settings
from support.fine_tunes import created
from support.processes.background import HUNG_S

from worker.fine_tunes.record import FineTune, FineTunes


@pytest.fixture
def fine_tunes(tmp_path: Path) -> FineTunes:
    (tmp_path / "inbox").mkdir()
    return FineTunes(settings(FILES_PATH=str(tmp_path), FILES_MAX_MB="1"))


@pytest.fixture
def fine_tune(fine_tunes: FineTunes) -> FineTune:
    return created(fine_tunes)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("memory", "step", "workshop"):
        monkeypatch.setattr(f"worker.fine_tunes.{name}.WATCH_S", 0.02)
    monkeypatch.setattr("worker.long_work.runner.LOOK_S", 0.02)
    # No test waits for the end of that.
    monkeypatch.setattr("worker.fine_tunes.step.CHECKPOINT_S", 10 * HUNG_S)
