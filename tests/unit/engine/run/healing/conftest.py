"""Time, as the healer sees it: every look at the clock takes it on."""

import pytest
from support.engine.cores import CLOCK

from worker.engine.run.healing import healer


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the healer look without a pause, and a tenth of a second pass with each of its looks."""
    monkeypatch.setattr(healer, "WATCH_INTERVAL_S", 0.001)
    monkeypatch.setattr(healer, "LOOKS_S", 0.001)
    monkeypatch.setattr(healer, "time", CLOCK)
