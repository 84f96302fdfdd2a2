"""Builds images and runs commands in them with buildah, without a daemon and without a registry."""

import gzip
import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

# The first bytes of compressed data.
GZIP = b"\x1f\x8b"

Ran = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Image:
    """An image in a directory with the OCI layout; the first layer is the lowest."""

    layout: Path

    @cached_property
    def layers(self) -> list[Path]:
        return [self._blob(layer["digest"]) for layer in self._manifest["layers"]]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The image's configuration: environment, labels, history."""
        return self._json(self._manifest["config"]["digest"])

    def layer_of(self, path: str) -> Path:
        """Return the lowest layer that contains a file."""
        return next(layer for layer in self.layers if path in names(layer))

    def holds(self, text: str) -> bool:
        """Return whether the files of a layer or the metadata contain a text."""
        blobs = (path for path in self.layout.rglob("*") if path.is_file())
        return any(text.encode() in content(blob) for blob in blobs)

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        index = json.loads((self.layout / "index.json").read_text())
        return self._json(index["manifests"][0]["digest"])

    def _json(self, digest: str) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self._blob(digest).read_text())
        return read

    def _blob(self, digest: str) -> Path:
        return self.layout / "blobs" / digest.replace(":", "/")


def content(blob: Path) -> bytes:
    """Return the decompressed content of a blob."""
    read = blob.read_bytes()
    return gzip.decompress(read) if read.startswith(GZIP) else read


def names(layer: Path) -> set[str]:
    with tarfile.open(layer) as opened:
        return set(opened.getnames())


@dataclass(frozen=True)
class Buildah:
    """The buildah command with a store of its own."""

    folder: Path

    @cached_property
    def environ(self) -> dict[str, str]:
        """Variables that make buildah use this store with no requirement except root.

        The overlay driver avoids a copy for each step of a build, which would take gigabytes.
        """
        self.folder.mkdir(exist_ok=True)
        file = self.folder / "storage.conf"
        roots = f'graphroot = "{self.folder}/store"\nrunroot = "{self.folder}/run"\n'
        file.write_text(f'[storage]\ndriver = "overlay"\n{roots}')
        stored = {"CONTAINERS_STORAGE_CONF": str(file), "BUILDAH_ISOLATION": "chroot"}
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), **stored}

    def build(self, tag: str, context: Path, *options: str) -> Ran:
        """Build an image; reuse unchanged steps."""
        return self.execute(
            "build", "--layers", "--pull-never", "--tag", tag, *options, str(context)
        )

    def run(self, tag: str, *command: str) -> Ran:
        """Run a command in a container of an image."""
        made = self.execute("from", "--pull-never", tag)
        assert made.returncode == 0, made.stderr
        container = made.stdout.strip()
        try:
            return self.execute("run", container, "--", *command)
        finally:
            self.execute("rm", container)

    def image(self, tag: str) -> Image:
        """Export an image to a directory."""
        layout = self.folder / "images" / tag.replace(":", "-")
        layout.parent.mkdir(parents=True, exist_ok=True)
        pushed = self.execute("push", tag, f"oci:{layout}")
        assert pushed.returncode == 0, pushed.stderr
        return Image(layout)

    def delete_store(self) -> None:
        """Unmount and delete the store, since a failed build leaves its container."""
        self.execute("rm", "--all")
        shutil.rmtree(self.folder)

    def execute(self, *command: str) -> Ran:
        """Run a command of buildah."""
        return subprocess.run(
            ("buildah", *command),
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
