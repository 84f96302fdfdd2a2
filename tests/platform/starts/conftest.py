"""Fixtures for workers that download models."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from support.hub.downloads import hub_with
from support.hub.server import Hub

from worker.store.files import INDEX

# Bytes of a file of weights: large enough to interrupt its download.
SIZE = 700_000


@pytest.fixture(scope="session")
def model_repository(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a repository: the demo model's files, with random weights in three shards."""
    folder = tmp_path_factory.mktemp("source") / "files"
    ignored = shutil.ignore_patterns("model.safetensors", "recipe.*")
    shutil.copytree(demo_model, folder, ignore=ignored)
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    for seed, name in enumerate(names):
        tensor = {"dtype": "U8", "shape": [SIZE], "data_offsets": [0, SIZE]}
        header = json.dumps({name: tensor}).encode()
        length = len(header).to_bytes(8, "little")
        (folder / name).write_bytes(length + header + Random(seed).randbytes(SIZE))
    (folder / INDEX).write_text(json.dumps({"weight_map": {name: name for name in names}}))
    return folder


@pytest.fixture
def hub(model_repository: Path) -> Iterator[Hub]:
    with hub_with(model_repository) as running:
        yield running


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    place = tmp_path / "volume"
    place.mkdir()
    return place
