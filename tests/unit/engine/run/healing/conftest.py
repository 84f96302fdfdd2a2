"""The clock of the healer, which advances whenever it is read."""

import pytest
from support.engine.cores import CLOCK

from worker.engine.run.healing import healer


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the healer poll without pauses, and its clock advance by 0.1 seconds per reading."""
    monkeypatch.setattr(healer, "WATCH_INTERVAL_S", 0.001)
    monkeypatch.setattr(healer, "POLL_INTERVAL_S", 0.001)
    monkeypatch.setattr(healer, "time", CLOCK)
