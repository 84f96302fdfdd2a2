"""Workers without engines, whose home and environment are empty."""

import logging
from pathlib import Path

import pytest
from support.compile_caches import Workers

from worker.compile_cache import STARTUP_PLAN, VARIABLES


@pytest.fixture
def workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Workers:
    for name in (*VARIABLES, STARTUP_PLAN):
        # Set first, so that what a start exports is taken back, too.
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    caplog.set_level(logging.INFO, logger="worker")
    (tmp_path / "volume").mkdir()
    return Workers(tmp_path / "volume", tmp_path)
