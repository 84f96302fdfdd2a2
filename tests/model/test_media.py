"""Tests of images in jobs of both paths, with a vision model (scripts/media.py)."""

from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version
from support.models import vision
from support.processes.offline_scripts import run_script


@pytest.mark.skipif(
    Version(metadata.version("transformers")) < Version("5.18"),
    reason="this transformers needs torchvision for images, since a docstring mentions it",
)
def test_a_vision_model_sees_images_and_attacks_are_refused(
    demo_model: Path, tmp_path: Path
) -> None:
    vision.make_vision_model(tmp_path / "model", demo_model)
    ended = run_script("media", tmp_path, tmp_path / "model")
    assert not ended["failed"], "\n".join(ended["failed"].values())
