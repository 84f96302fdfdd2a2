"""What is known of a model without loading it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Origin(StrEnum):
    """Where a model comes from, in the order in which it is looked for."""

    DIRECTORY = "directory"
    BAKED = "image"
    PLATFORM = "platform's cache"
    VOLUME = "volume"
    DOWNLOAD = "download"


class Kind(StrEnum):
    """What is loaded of a repository."""

    MODEL = "model"
    TOKENIZER = "tokenizer"
    ADAPTER = "adapter"
    # Which another repository names.
    CODE = "code"


@dataclass(frozen=True)
class Wanted:
    """What the settings name: a directory or a repository, of which the files are to be on disk.

    Args:
        model: a directory, or a repository's name.
        revision: branch, tag or commit; the repository's main branch.
        load_format: vLLM's option.
        download_dir: holds the downloads, in place of the hub's cache on the volume.
        kind: what of the repository is loaded.
        code: whether code of the repository may run, and is thus loaded, too.
        by_name: whether libraries look for it by its name, in their own cache.
        setting: the name of the setting, for messages.
    """

    model: str
    revision: str | None = None
    load_format: str = "auto"
    download_dir: Path | None = None
    kind: Kind = Kind.MODEL
    code: bool = False
    by_name: bool = False
    setting: str = field(default="MODEL_NAME", compare=False)

    def __str__(self) -> str:
        told = f"{self.model}@{self.revision}" if self.revision else self.model
        # A message stays one line.
        return told if told.isprintable() else repr(told)


@dataclass(frozen=True)
class File:
    """A file of a repository; ``size`` in bytes, ``blob`` its name in the hub's cache."""

    name: str
    size: int
    blob: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """One state of a model's repository, or a directory: what vLLM loads of it, and its shape.

    ``missing`` are the files that are yet to be downloaded, ``lacking`` the names of weights that
    its index promises and nobody has. ``tensors`` counts elements by the safetensors' name of
    their type; it is None where the weights don't say. ``damaged`` says which weights on the disk
    can't be read. ``passed`` says why it was not found in places that come before its own.
    """

    model: str
    origin: Origin
    place: Path
    commit: str | None = None
    weights: tuple[File, ...] = ()
    others: tuple[File, ...] = ()
    missing: tuple[File, ...] = ()
    lacking: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, int] | None = None
    damaged: str | None = None
    gated: bool = False
    passed: tuple[str, ...] = ()

    @property
    def weights_size(self) -> int:
        return sum(file.size for file in self.weights)

    @property
    def missing_size(self) -> int:
        return sum(file.size for file in self.missing)
