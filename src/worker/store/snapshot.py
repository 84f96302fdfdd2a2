"""The store's nouns: what is wanted, where it was found, and a model as it is described."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Origin(StrEnum):
    """Where a model comes from, in the order in which the places are searched."""

    DIRECTORY = "directory"
    BAKED = "image"
    PLATFORM = "platform's cache"
    VOLUME = "volume"
    DOWNLOAD = "download"


class Kind(StrEnum):
    """Which part of a repository is loaded."""

    MODEL = "model"
    TOKENIZER = "tokenizer"
    ADAPTER = "adapter"
    # Python files that another repository's configuration refers to.
    CODE = "code"


@dataclass(frozen=True)
class Wanted:
    """A directory or a repository that is to be loaded, and how.

    Args:
        model: a directory, or a repository's name.
        revision: branch, tag or commit; None is the main branch.
        load_format: vLLM's option.
        download_dir: cache for downloads, in place of the volume's.
        kind: which part of the repository is loaded.
        code: whether code of the repository may run, and is thus loaded, too.
        by_name: whether libraries look for it by its name, in their own cache.
        setting: name of the setting that wants it, for messages.
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
        text = f"{self.model}@{self.revision}" if self.revision else self.model
        # A message stays one line.
        return text if text.isprintable() else repr(text)


@dataclass(frozen=True)
class Found:
    """The directory with all that is wanted; ``passed`` says why earlier places won't do."""

    wanted: Wanted
    place: Path
    origin: Origin
    commit: str | None = None
    passed: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.origin is Origin.DIRECTORY:
            return f"{self.wanted.model} is a directory"
        where = "downloaded" if self.origin is Origin.DOWNLOAD else f"from the {self.origin}"
        commit = f", commit {self.commit[:12]}" if self.commit else ""
        passed = f"; passed over: {'; '.join(self.passed)}" if self.passed else ""
        return f"{self.wanted.model} {where}{commit}: {self.place}{passed}"


@dataclass(frozen=True)
class NotFound:
    """No place has all that is wanted; ``passed`` says why, place by place."""

    wanted: Wanted
    passed: tuple[str, ...]


@dataclass(frozen=True)
class File:
    """A file of a repository; ``size`` in bytes, ``blob`` the hash that names its content."""

    name: str
    size: int
    blob: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """A commit of a model's repository, or a directory: its files, and what they say of it.

    Args:
        place: the directory; of a model on the hub, its folder in the cache.
        weights, others: the files that vLLM loads.
        missing: those of them that are not downloaded yet.
        lacking: names of weights that the index lists, but that exist neither here nor on the hub.
        tensors: number of elements by the safetensors' name of their type; None if unknown.
        damaged: says which weights on the disk can't be read.
        passed: says why places that come before its own were passed over.
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
