"""Images on both paths of a model that sees: shown, fetched, and refused (scripts/media.py)."""

from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version
from support.models import vision
from support.processes.offline_scripts import Ended, run_script

pytestmark = pytest.mark.skipif(
    Version(metadata.version("transformers")) < Version("5.18"),
    reason="this transformers needs torchvision for images, since a docstring mentions it",
)


@pytest.fixture(scope="module")
def seen(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """What the script has seen."""
    folder = tmp_path_factory.mktemp("media")
    vision.make(folder / "model", demo_model)
    return run_script("media", folder, folder / "model")


def test_an_image_that_the_worker_fetches_is_seen_like_the_same_image_as_data(seen: Ended) -> None:
    assert len(seen["answers"]) == 10
    for as_data, fetched in seen["answers"].values():
        assert as_data == fetched
    for route in ("raw", "chat", "responses", "messages"):
        assert seen["answers"][f"{route} red"] != seen["answers"][f"{route} blue"]
    assert seen["answers"]["raw red"][0] == seen["answers"]["chat red"][:1]


def test_only_images_were_asked_for_that_were_to_be_shown(seen: Ended) -> None:
    assert seen["asked"] == ["/red", "/blue"] * 5
    assert seen["kinds"] == ["image"]


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        ("raw inside", "its host has no address on the public internet"),
        ("chat inside", "its host has no address on the public internet"),
        ("list inside", "its host has no address on the public internet"),
        ("raw file", "its URL is neither http, https nor data"),
        ("chat uuid", "uuid: not in a request"),
        ("raw uuid alone", "uuid: not in a request"),
        ("raw tensor", "image_embeds: not in a request"),
        ("chat sound", "this model takes text and image"),
        ("raw kwargs", "mm_processor_kwargs: not in a request"),
    ],
)
def test_an_attack_is_the_callers_mistake(seen: Ended, attack: str, message: str) -> None:
    error = seen["refused"][attack]
    assert error["code"] == 400
    assert message in error["message"]
