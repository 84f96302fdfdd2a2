"""What starts that download share."""

from pathlib import Path

import pytest
from support.hub.downloads import repository


@pytest.fixture(scope="session")
def source(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose files are large enough to act in the middle of its download."""
    return repository(tmp_path_factory.mktemp("source") / "files", demo_model)
