"""Fixtures of the builds: buildah, the stand-in for vLLM's image, and a hub to download from."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from image import standin
from image.buildah import Buildah, Ran
from support import ROOT
from support.hub.server import MEMBER, Hub, hub

STANDIN = "localhost/standin"

Build = Callable[..., Ran]


def give_up(reason: str) -> NoReturn:
    """Skip the test; where root is expected to run it (see support/disks.py), fail it."""
    if os.environ.get("REQUIRE_ROOT") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """A buildah that has the stand-in, and can run a program in it."""
    if not shutil.which("buildah"):
        give_up("buildah is not installed")
    folder = tmp_path_factory.mktemp("buildah")
    tool = Buildah(folder / "store")
    try:
        standin.make(folder / "standin")
        built = tool.build(STANDIN, folder / "standin")
        ran = tool.run(STANDIN, "sh", "-c", ":") if built.returncode == 0 else built
        if ran.returncode:
            give_up(f"buildah can't run a program here: {ran.stderr.strip()}")
        yield tool
    finally:
        tool.end()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def loopback_hub() -> Iterator[Hub]:
    with hub() as running:
        yield running


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that the Dockerfile needs."""
    copied = tmp_path_factory.mktemp("context")
    for name in ("src", "builder"):
        shutil.copytree(ROOT / name, copied / name)
    for name in ("Dockerfile", ".dockerignore"):
        shutil.copy2(ROOT / name, copied)
    return copied


@pytest.fixture(scope="session")
def build(
    buildah: Buildah,
    context: Path,
    loopback_hub: Hub,
    tmp_path_factory: pytest.TempPathFactory,
) -> Build:
    """Build the Dockerfile on the stand-in, with a token that may read everything."""
    file = tmp_path_factory.mktemp("secret") / "token"
    file.write_text(f"{MEMBER}\n")

    def built(tag: str, context: Path = context, **arguments: str) -> Ran:
        every = {"BASE_IMAGE": STANDIN, "HF_ENDPOINT": loopback_hub.endpoint, **arguments}
        options = [f"--build-arg={name}={value}" for name, value in every.items()]
        return buildah.build(tag, context, f"--secret=id=HF_TOKEN,src={file}", *options)

    return built
