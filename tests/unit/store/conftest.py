"""A model's repository, the places where it may be, and a hub that serves it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hub.caches import NAME, HubAndVolume, isolate_hub_library, make_model
from support.hub.server import hub

from worker.store import Places


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_model(tmp_path / "repository")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "volume", tmp_path / "platform", model_store=tmp_path / "store")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubAndVolume]:
    """A hub with a repository, next to an empty volume; downloads are retried after 10 ms."""
    isolate_hub_library(tmp_path, monkeypatch)
    monkeypatch.setattr("worker.store.hub.MAX_PAUSES_S", (0.01, 0.01, 0.01))
    source = make_model(tmp_path / "source")
    with hub() as running:
        running.add(NAME, source)
        yield HubAndVolume(running, source, Places(tmp_path / "volume", tmp_path / "platform"))
