"""Fixtures for workers that download models."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hub.downloads import hub_with, make_repository
from support.hub.server import Hub


@pytest.fixture(scope="session")
def model_repository(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a repository with files large enough to interrupt their download."""
    return make_repository(tmp_path_factory.mktemp("source") / "files", demo_model)


@pytest.fixture
def hub(model_repository: Path) -> Iterator[Hub]:
    with hub_with(model_repository) as running:
        yield running


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    place = tmp_path / "volume"
    place.mkdir()
    return place
