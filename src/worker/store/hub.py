"""What the hub says of a model, and why it does not: nothing of it is kept on the disk."""

import errno
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, errors, get_token, hf_hub_download

from worker.store import disk, files
from worker.store.files import CONFIG, INDEX
from worker.store.places import HASH, Places, folder, folders
from worker.store.refusals import Reason, WrongChecksumError, unavailable
from worker.store.resolve import Found, resolve
from worker.store.snapshot import File, Origin, Snapshot, Wanted

# Which of the hub's HTTP libraries it is depends on the hub's release.
HTTPError: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]  # for its own use

# What a header can carry.
_TOKEN = re.compile(r"[!-~]*")
# How long an answer may take to begin.
PATIENCE_S = 4.0
# Headers of shards asked for at once.
_AT_ONCE = 16
# Of more shards the headers are not asked for: that would take longer than they are worth.
_MOST_HEADERS = 64


@dataclass(frozen=True)
class Listing:
    """A repository at a commit: all its files, by name, under the name that it has today."""

    name: str
    commit: str
    files: Mapping[str, File]
    gated: bool


def listing(api: HfApi, wanted: Wanted, patience_s: float = PATIENCE_S) -> Listing:
    """Ask for the files of a repository, and for the commit that its revision has now.

    Raises:
        Exception: what ``failures_told`` tells.
    """
    if not api.endpoint.isprintable():
        # The HTTP library's own error for it is no kind of any other.
        raise ValueError("no address")
    info = api.model_info(
        wanted.model, revision=wanted.revision, files_metadata=True, timeout=patience_s
    )
    siblings = [each for each in info.siblings or () if files.inside(each.rfilename)]
    listed = {each.rfilename: _file(each) for each in siblings}
    hashes = [str(info.sha), *(str(each.blob) for each in listed.values())]
    if not all(map(HASH.fullmatch, hashes)):
        # Files on the disk are called by them.
        raise ValueError("no hashes")
    return Listing(info.id, str(info.sha), listed, bool(info.gated))


def locate(wanted: Wanted, places: Places, endpoint: str | None = None) -> Snapshot:
    """Describe a model as a start would find it, without downloading it: on the disk or the hub.

    Args:
        wanted: the model.
        places: where it may lie.
        endpoint: another hub's address than the library's own.

    Raises:
        Unavailable: the model is neither on the disk nor on the hub, or the hub refuses it.
    """
    found = resolve(wanted, places)
    if isinstance(found, Found):
        described = disk.described(wanted, found.origin, found.place, found.commit)
    else:
        described = _ask(wanted, places, endpoint)
    return replace(described, passed=found.passed)


def _ask(wanted: Wanted, places: Places, endpoint: str | None) -> Snapshot:
    """Describe a model as the hub has it, and which of its files are not in a cache yet."""
    api = HfApi(endpoint=endpoint)
    with failures_told(wanted):
        listed = listing(api, wanted)
        asked = _Asked(api, wanted, listed.commit, places)
        # A gated repository lists its files to anybody: only reading one shows who may.
        config = files.json_object(asked.text(CONFIG, listed.files))
        index = files.indexed(asked.text(INDEX, listed.files))
        named = files.weights(listed.files, index, wanted.load_format)
        weights = tuple(listed.files[name] for name in named if name in listed.files)
        tensors, damaged = asked.counted(weights)
        others = tuple(listed.files[name] for name in files.others(listed.files, wanted.code))
        return Snapshot(
            model=wanted.model,
            origin=Origin.DOWNLOAD,
            place=folder(places.cache(wanted), wanted.model),
            commit=listed.commit,
            weights=weights,
            others=others,
            missing=asked.missing(weights + others),
            lacking=tuple(name for name in named if name not in listed.files),
            config=config,
            tensors=tensors,
            damaged=damaged,
            gated=listed.gated,
        )


# The most specific first: what is gated counts as not found, too.
_REASONS: tuple[tuple[type[Exception], Reason], ...] = (
    (errors.HFValidationError, Reason.NOT_A_REPOSITORY),
    (errors.OfflineModeIsEnabled, Reason.OFFLINE),
    (errors.GatedRepoError, Reason.NO_ACCESS),
    (errors.RepositoryNotFoundError, Reason.MISSING),
    (errors.RevisionNotFoundError, Reason.REVISION_MISSING),
    (WrongChecksumError, Reason.WRONG_CHECKSUM),
)
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def failures_told(wanted: Wanted) -> Iterator[None]:
    """Tell why the hub, or the disk, refuses.

    Raises:
        Unavailable: in place of what was raised.
    """
    try:
        yield
    except (HTTPError, OSError, ValueError) as error:
        # Values are wrong in what makes no address or no header, and in answers that are no JSON.
        reason = _reason(error)
        told = [getattr(error, name, None) for name in ("strerror", "filename")]
        of_disk = reason in (Reason.NO_SPACE, Reason.UNWRITABLE, Reason.WRONG_CHECKSUM)
        detail = ": ".join(str(each) for each in told if each)
        raise unavailable(wanted, reason, detail if of_disk else "") from error


def _reason(error: Exception) -> Reason:
    found = next((reason for class_, reason in _REASONS if isinstance(error, class_)), None)
    number = getattr(error, "errno", None)
    if found is None and number and not isinstance(error, HTTPError):
        return Reason.NO_SPACE if number in _FULL else Reason.UNWRITABLE
    status = getattr(getattr(error, "response", None), "status_code", 0)
    found = found or _reason_by_status(status)
    return Reason.TOKEN_MISSING if found is Reason.NO_ACCESS and not get_token() else found


# Where the hub names no reason.
_BY_STATUS: dict[int, Reason] = {
    HTTPStatus.FORBIDDEN: Reason.NO_ACCESS,
    HTTPStatus.NOT_FOUND: Reason.MISSING,
    HTTPStatus.GONE: Reason.MISSING,
    HTTPStatus.UNAVAILABLE_FOR_LEGAL_REASONS: Reason.MISSING,
    HTTPStatus.TOO_MANY_REQUESTS: Reason.RATE_LIMITED,
}


def _reason_by_status(status: int) -> Reason:
    if status == HTTPStatus.UNAUTHORIZED:
        return Reason.BAD_TOKEN
    # What no header can carry is not even sent.
    if not _TOKEN.fullmatch(get_token() or ""):
        return Reason.ODD_TOKEN
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return Reason.HUB_FAILS if status else Reason.UNREACHABLE


@dataclass(frozen=True)
class _Asked:
    """One commit of a repository on the hub, and what the cache has of it."""

    api: HfApi
    wanted: Wanted
    commit: str
    places: Places

    def text(self, name: str, listed: Mapping[str, File]) -> str:
        """Read a small file; without one, nothing."""
        if name not in listed:
            return ""
        if path := self._kept(name):
            return path.read_text(errors="replace")
        with tempfile.TemporaryDirectory() as folder:
            copy = hf_hub_download(
                self.wanted.model,
                name,
                revision=self.commit,
                cache_dir=folder,
                endpoint=self.api.endpoint,
                etag_timeout=PATIENCE_S,
            )
            return Path(copy).read_text(errors="replace")

    def missing(self, needed: tuple[File, ...]) -> tuple[File, ...]:
        """Select what is to be downloaded: neither in this snapshot nor in an older one."""

        def kept(file: File) -> bool:
            blobs = [each / "blobs" / (file.blob or "?") for each in self._folders()]
            return bool(self._kept(file.name)) or any(blob.is_file() for blob in blobs)

        return tuple(file for file in needed if not kept(file))

    def counted(self, weights: tuple[File, ...]) -> tuple[Counter[str] | None, str | None]:
        """Count the elements of weights, out of the cache where they are there."""
        kept = [self._kept(file.name) for file in weights]
        if all(kept):
            return disk.counted([path for path in kept if path])
        of_another_format = not all(file.name.endswith(".safetensors") for file in weights)
        if of_another_format or len(weights) > _MOST_HEADERS:
            return None, None
        total: Counter[str] = Counter()
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                for counted in pool.map(self._header, weights):
                    total.update(counted)
        except (errors.SafetensorsParsingError, errors.NotASafetensorsRepoError):
            return None, None
        return total, None

    def _header(self, file: File) -> dict[str, int]:
        metadata = self.api.parse_safetensors_file_metadata(
            self.wanted.model, file.name, revision=self.commit, timeout=PATIENCE_S
        )
        return {str(dtype): count for dtype, count in metadata.parameter_count.items()}

    def _kept(self, name: str) -> Path | None:
        paths = [each / "snapshots" / self.commit / name for each in self._folders()]
        return next((path for path in paths if path.is_file()), None)

    def _folders(self) -> list[Path]:
        return folders(self.places.cache(self.wanted), self.wanted.model)


def _file(sibling: Any) -> File:
    blob = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    return File(sibling.rfilename, sibling.size or 0, blob)
