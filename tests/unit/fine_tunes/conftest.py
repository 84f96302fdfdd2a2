"""Fine-tunes on a volume of the test's own."""

from pathlib import Path

import pytest
from support.engine.scripted import settings

from worker.fine_tunes.store import FineTunes


@pytest.fixture
def fine_tunes(tmp_path: Path) -> FineTunes:
    (tmp_path / "inbox").mkdir()
    return FineTunes.of(settings(FILES_PATH=str(tmp_path), FILES_MAX_MB="1"))
