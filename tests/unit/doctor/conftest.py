"""Fixtures for all tests of the doctor."""

import time

import pytest


@pytest.fixture(autouse=True)
def _skip_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the two seconds after which vLLM parses a malformed configuration once more."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
