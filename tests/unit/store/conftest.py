"""A model's repository, the places where it may be, and a hub that serves it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hub.caches import HubAndVolume, hub_and_volume, make_model

from worker.store import Places


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_model(tmp_path / "repository")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "volume", tmp_path / "platform", model_store=tmp_path / "store")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubAndVolume]:
    with hub_and_volume(tmp_path, monkeypatch) as running:
        yield running
