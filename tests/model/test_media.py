"""Images on both paths of a model that sees: shown, fetched, and refused."""

import json
import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version
from support.models import vision
from support.processes.commands import HOME
from support.processes.forked import forked
from support.processes.offline_scripts import SCRIPTS, Ended

pytestmark = pytest.mark.skipif(
    Version(metadata.version("transformers")) < Version("5.18"),
    reason="this transformers needs torchvision for images, since a docstring mentions it",
)


@pytest.fixture(scope="module")
def shown(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Return what the script of this name has seen."""
    folder = tmp_path_factory.mktemp("media")
    vision.make(folder / "model", demo_model)
    output = folder / "stdout"
    command = [SCRIPTS / "media.py", folder / "model"]
    with forked(command, HOME, folder / "stderr", output) as script:
        status, left = script.ended(), script.session()
    assert output.read_bytes(), script.output
    return Ended(json.loads(output.read_bytes()), script.output, status, left)


def test_an_image_that_the_worker_fetches_is_seen_like_the_same_image_as_data(shown: Ended) -> None:
    assert len(shown["answers"]) == 10
    for as_data, fetched in shown["answers"].values():
        assert as_data == fetched
    for route in ("raw", "chat", "responses", "messages"):
        assert shown["answers"][f"{route} red"] != shown["answers"][f"{route} blue"]
    assert shown["answers"]["raw red"][0] == shown["answers"]["chat red"][:1]


def test_only_images_were_asked_for_that_were_to_be_shown(shown: Ended) -> None:
    assert shown["asked"] == ["/red", "/blue"] * 5 + ["/red"]
    assert shown["kinds"] == ["image"]


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        ("inside", "its host has no address on the public internet"),
        ("file", "its URL is neither http, https nor data"),
        ("uuid", r"uuid: not in a request"),
        ("uuid alone", r"uuid: not in a request"),
        ("tensor", "image_embeds: not in a request"),
        ("sound", "this model takes text and image"),
        ("kwargs", "mm_processor_kwargs: not in a request"),
    ],
)
@pytest.mark.parametrize("path", ["raw", "chat"])
def test_an_attack_is_the_callers_mistake(
    shown: Ended, path: str, attack: str, message: str
) -> None:
    refused = shown["refused"][f"{path} {attack}"]
    assert message in refused
    assert re.search(r'"code": 400', refused)


def test_an_item_of_a_list_is_refused_alone(shown: Ended) -> None:
    assert "no address on the public internet" in shown["refused"]["list inside"]
