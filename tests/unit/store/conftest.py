"""A model's repository, the places where it may lie, and a hub that serves it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hub.caches import On, hub_and_volume, model

from worker.store import Places


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return model(tmp_path / "repository")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "volume", tmp_path / "platform")


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[On]:
    with hub_and_volume(tmp_path, monkeypatch) as both:
        yield both
