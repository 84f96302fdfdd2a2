"""Fixtures for image builds: buildah, a stand-in for vLLM's image, and a hub with models."""

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


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test, or fail it if the tests must run as root (see support/disks.py)."""
    if os.environ.get("REQUIRE_ROOT") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """Return a buildah that has built the stand-in and can run a program in it."""
    if not shutil.which("buildah"):
        skip_or_fail("buildah is not installed")
    folder = tmp_path_factory.mktemp("buildah")
    tool = Buildah(folder / "store")
    try:
        standin.make(folder / "standin")
        build_result = tool.build(STANDIN, folder / "standin")
        ran = tool.run(STANDIN, "sh", "-c", ":") if build_result.returncode == 0 else build_result
        if ran.returncode:
            skip_or_fail(f"buildah can't run a program here: {ran.stderr.strip()}")
        yield tool
    finally:
        tool.delete_store()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def loopback_hub() -> Iterator[Hub]:
    with hub() as running:
        yield running


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the files that the Dockerfile needs."""
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
    """Return a function that builds the Dockerfile on the stand-in with a valid token."""
    file = tmp_path_factory.mktemp("secret") / "token"
    file.write_text(f"{MEMBER}\n")

    def build_image(tag: str, context: Path = context, **arguments: str) -> Ran:
        every = {"BASE_IMAGE": STANDIN, "HF_ENDPOINT": loopback_hub.endpoint, **arguments}
        options = [f"--build-arg={name}={value}" for name, value in every.items()]
        return buildah.build(tag, context, f"--secret=id=HF_TOKEN,src={file}", *options)

    return build_image
