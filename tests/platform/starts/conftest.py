"""What starts that download share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hub.downloads import hub_with, repository
from support.hub.server import Hub


@pytest.fixture(scope="session")
def model_repository(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose files are large enough to act in the middle of its download."""
    return repository(tmp_path_factory.mktemp("source") / "files", demo_model)


@pytest.fixture
def hub(model_repository: Path) -> Iterator[Hub]:
    with hub_with(model_repository) as running:
        yield running


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    place = tmp_path / "volume"
    place.mkdir()
    return place
