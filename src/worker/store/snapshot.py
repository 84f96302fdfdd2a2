"""The store's data types: artifacts to load, their locations, and descriptions of models."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from worker.errors import StartFailed


class Origin(StrEnum):
    """Where a model comes from, in the order in which the places are searched."""

    DIRECTORY = "directory"
    BAKED = "image"
    MODEL_STORE = "platform's model store"
    PLATFORM = "platform's cache"
    VOLUME = "volume"
    DOWNLOAD = "download"


class ArtifactKind(StrEnum):
    """The part of a repository that is loaded."""

    MODEL = "model"
    TOKENIZER = "tokenizer"
    ADAPTER = "adapter"
    # Python files to which another repository's configuration refers.
    CODE = "code"


@dataclass(frozen=True)
class Artifact:
    """A directory or a repository to load, and how to load it."""

    model: str  # a directory, or a repository's name
    revision: str | None = None  # branch, tag or commit; None for the main branch
    load_format: str = "auto"  # vLLM's option
    download_dir: Path | None = None  # cache for downloads, instead of the volume's
    kind: ArtifactKind = ArtifactKind.MODEL
    code: bool = False  # the repository's code may run, and is loaded, too
    loaded_by_name: bool = False  # libraries load it by its name, from their own cache
    # The one that configures it, for messages.
    setting: str = field(default="MODEL_NAME", compare=False)

    def __str__(self) -> str:
        text = f"{self.model}@{self.revision}" if self.revision else self.model
        # Keep messages on one line.
        return text if text.isprintable() else repr(text)


@dataclass(frozen=True)
class ArtifactLocation:
    """The directory of an artifact's files; ``skipped`` says why earlier places were skipped.

    If the files were downloaded just now, ``downloaded_bytes`` and ``download_s`` are the size and
    the duration in seconds.
    """

    artifact: Artifact
    directory: Path
    origin: Origin
    commit: str | None = None
    skipped: tuple[str, ...] = ()
    downloaded_bytes: int = field(default=0, compare=False)
    download_s: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        if self.origin is Origin.DIRECTORY:
            return f"{self.artifact.model} is a directory"
        where = "downloaded" if self.origin is Origin.DOWNLOAD else f"from the {self.origin}"
        commit = f", commit {self.commit[:12]}" if self.commit else ""
        passed = f"; skipped: {'; '.join(self.skipped)}" if self.skipped else ""
        return f"{self.artifact.model} {where}{commit}: {self.directory}{passed}"


@dataclass(frozen=True)
class UnlocatedArtifact:
    """An artifact that no place has completely; ``skipped`` contains the reason of each place."""

    artifact: Artifact
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class File:
    """A file of a repository; ``size`` is in bytes, ``blob`` is the hash that names its content."""

    name: str
    size: int
    blob: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """A commit of a model's repository, or a directory: its files and their properties."""

    model: str  # a directory, or a repository's name
    origin: Origin
    directory: Path  # on the hub: the repository's folder in the cache
    small_files: Path  # with all but the weights; ``directory`` if that is on the disk
    commit: str | None = None  # None for a directory
    weights: tuple[File, ...] = ()  # that vLLM loads
    others: tuple[File, ...] = ()  # that vLLM loads, too
    not_downloaded: tuple[File, ...] = ()  # weights and others that must still be downloaded
    # Contents of config.json; empty if missing or invalid.
    config: Mapping[str, Any] = field(default_factory=dict)
    # Numbers of elements by type, as safetensors names it; None if unknown.
    tensors: Mapping[str, int] | None = None
    refusal: StartFailed | None = None  # why the weights can't be loaded; None if they can
    gated: bool = False  # reading the repository needs permission
    skipped: tuple[str, ...] = ()  # reasons why places with precedence were skipped

    @property
    def weights_size(self) -> int:
        return sum(file.size for file in self.weights)

    @property
    def download_size(self) -> int:
        return sum(file.size for file in self.not_downloaded)
