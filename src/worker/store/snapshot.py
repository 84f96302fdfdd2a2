"""What is known of a model without loading it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from worker.errors import StartFailed


class Origin(StrEnum):
    """Where a model comes from."""

    DIRECTORY = "directory"
    CACHE = "cache"
    DOWNLOAD = "download"


class Reason(StrEnum):
    """Why a model can't be had."""

    NOT_A_REPOSITORY = "not a repository"
    MISSING = "missing"
    REVISION_MISSING = "revision missing"
    TOKEN_MISSING = "token missing"
    NO_ACCESS = "no access"
    BAD_TOKEN = "bad token"
    ODD_TOKEN = "odd token"
    OFFLINE = "offline"
    UNREACHABLE = "unreachable"


class Unavailable(StartFailed):
    """A model can't be had from the hub: ``told`` is why, ``remedy`` what can be done."""

    def __init__(self, reason: Reason, told: str, remedy: str) -> None:
        super().__init__(f"{told}: {remedy}")
        self.reason = reason
        self.told = told
        self.remedy = remedy


@dataclass(frozen=True)
class Wanted:
    """A model as the settings name it; a cache for its weights, if not the hub's own.

    ``part`` is for what is no model of its own: a tokenizer, or an adapter.
    """

    model: str
    revision: str | None = None
    load_format: str = "auto"
    download_dir: Path | None = None
    part: bool = False


@dataclass(frozen=True)
class File:
    """A file of a model; ``size`` in bytes, ``blob`` its name in the hub's cache."""

    name: str
    size: int
    blob: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """One state of a model's repository, or a directory: what vLLM loads of it, and its shape.

    ``missing`` are the files that are yet to be downloaded, ``lacking`` the names of weights that
    its index promises and nobody has. ``tensors`` counts elements by the safetensors' name of
    their type; it is None where the weights don't say. ``damaged`` says which weights on the disk
    can't be read, ``trouble`` why the hub did not confirm what lies in the cache.
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
    trouble: Unavailable | None = None

    @property
    def weights_size(self) -> int:
        return sum(file.size for file in self.weights)

    @property
    def missing_size(self) -> int:
        return sum(file.size for file in self.missing)
