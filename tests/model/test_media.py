"""Tests of images in jobs of both paths, with a vision model (scripts/media.py)."""

from pathlib import Path

import pytest
from support.models import vision
from support.processes.offline_scripts import run_script


@pytest.mark.skipif(not vision.CAN_BE_MADE, reason="this transformers needs torchvision")
def test_a_vision_model_sees_images_and_attacks_are_refused(
    demo_model: Path, tmp_path: Path
) -> None:
    vision.make_vision_model(tmp_path / "model", demo_model)
    ended = run_script("media", tmp_path, tmp_path / "model")
    assert not ended["failed"], "\n".join(ended["failed"].values())
