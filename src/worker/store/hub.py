"""Asks the hub about a model, and translates its errors. Writes nothing to the cache."""

import errno
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from logging import getLogger
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import HfApi, errors, get_token, hf_hub_download

from worker.store import disk, files
from worker.store.files import CONFIG, INDEX
from worker.store.places import HASH, Places, repository_folder, repository_folders
from worker.store.refusals import Reason, Unavailable, WrongChecksumError
from worker.store.resolve import resolve
from worker.store.snapshot import File, Found, Origin, Snapshot, Wanted

log = getLogger(__name__)
T = TypeVar("T")

# Which HTTP library's error it is depends on the release of huggingface_hub.
HTTPError: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]  # for its own use

# Seconds until the hub begins to answer.
PATIENCE_S = 4.0
# Seconds between tries, at most: a random part of each, or all workers would ask again at once.
PAUSES_S = (1.0, 2.0, 4.0)
# The characters that an HTTP header can carry.
_TOKEN = re.compile(r"[!-~]*")
# Headers of safetensors files read at once, and the most that are read at all.
_PARALLEL_HEADERS = 16
_MOST_HEADERS = 64


@dataclass(frozen=True)
class Listing:
    """A repository's files at a commit, by name; ``name`` is the repository's current one."""

    name: str
    commit: str
    files: Mapping[str, File]
    gated: bool


def listing(api: HfApi, wanted: Wanted, patience_s: float = PATIENCE_S) -> Listing:
    """Return the commit that a revision has now, and its files.

    Raises:
        Exception: what ``translated`` translates.
    """
    if not api.endpoint.isprintable():
        # The HTTP library raises an error of no common kind for it.
        raise ValueError("no address")
    info = api.model_info(
        wanted.model, revision=wanted.revision, files_metadata=True, timeout=patience_s
    )
    siblings = [sibling for sibling in info.siblings or () if files.inside(sibling.rfilename)]
    listed = {sibling.rfilename: _file(sibling) for sibling in siblings}
    hashes = [str(info.sha), *(str(file.blob) for file in listed.values())]
    if not all(map(HASH.fullmatch, hashes)):
        # They become names of files on the disk.
        raise ValueError("no hashes")
    return Listing(info.id, str(info.sha), listed, bool(info.gated))


def locate(wanted: Wanted, places: Places, endpoint: str | None = None) -> Snapshot:
    """Describe a model as a start would find it, without downloading it: on the disk or the hub.

    ``endpoint`` is the address of another hub than the library's own.

    Raises:
        Unavailable: the model is neither on the disk nor on the hub, or the hub refuses it.
    """
    found = resolve(wanted, places)
    if isinstance(found, Found):
        return disk.describe(found)
    api = HfApi(endpoint=endpoint)
    with translated(wanted):
        listed = listing(api, wanted)
        commit = _Commit(api, wanted, listed.commit, places)
        # Everybody may list a gated repository's files: reading one shows who has access.
        config = files.json_object(commit.text(CONFIG, listed.files))
        named = files.weights(listed.files, commit.text(INDEX, listed.files), wanted)
        weights = tuple(listed.files[name] for name in named if name in listed.files)
        tensors, damaged = commit.count_elements(weights)
        others = tuple(listed.files[name] for name in files.others(listed.files, wanted.code))
        return Snapshot(
            model=wanted.model,
            origin=Origin.DOWNLOAD,
            place=repository_folder(places.cache(wanted), wanted.model),
            commit=listed.commit,
            weights=weights,
            others=others,
            missing=commit.missing(weights + others),
            lacking=tuple(name for name in named if name not in listed.files),
            config=config,
            tensors=tensors,
            damaged=damaged,
            gated=listed.gated,
            passed=found.passed,
        )


def retry(call: Callable[[], T], failure: type[Exception], permanent: Callable[[Any], bool]) -> T:
    """Return what a call returns; call again after a failure, with growing pauses, up to 4 times.

    Args:
        call: takes no arguments.
        failure: the exception to try again after.
        permanent: returns whether such an exception would only come again.

    Raises:
        Exception: the last failure, or any other.
    """
    for longest_s in PAUSES_S:
        try:
            return call()
        except failure as error:
            if permanent(error):
                raise
            pause_s = random.uniform(0, longest_s)
            log.warning("%s; tried again in %.1f s", error, pause_s)
            time.sleep(pause_s)
    return call()


# The most specific first: GatedRepoError is a RepositoryNotFoundError.
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
def translated(wanted: Wanted) -> Iterator[None]:
    """Translate errors of the hub and of the disk.

    Raises:
        Unavailable: in place of what was raised.
    """
    try:
        yield
    except (HTTPError, OSError, ValueError) as error:
        # ValueError: no address, no header, or an answer that is no JSON.
        reason = _reason(error)
        of_disk = reason in (Reason.NO_SPACE, Reason.UNWRITABLE, Reason.WRONG_CHECKSUM)
        parts = [getattr(error, name, None) for name in ("strerror", "filename")]
        detail = ": ".join(str(part) for part in parts if part) if of_disk else ""
        raise Unavailable(wanted, reason, detail) from error


def _reason(error: Exception) -> Reason:
    found = next((reason for class_, reason in _REASONS if isinstance(error, class_)), None)
    number = getattr(error, "errno", None)
    if found is None and number and not isinstance(error, HTTPError):
        return Reason.NO_SPACE if number in _FULL else Reason.UNWRITABLE
    status = getattr(getattr(error, "response", None), "status_code", 0)
    found = found or _reason_by_status(status)
    return Reason.TOKEN_MISSING if found is Reason.NO_ACCESS and not get_token() else found


# For answers without an error code of the hub's.
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
    # A request with such a token is not even sent.
    if not _TOKEN.fullmatch(get_token() or ""):
        return Reason.ODD_TOKEN
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return Reason.HUB_FAILS if status else Reason.UNREACHABLE


@dataclass(frozen=True)
class _Commit:
    """One commit of a repository on the hub, and what the cache has of it."""

    api: HfApi
    wanted: Wanted
    commit: str
    places: Places

    def text(self, name: str, listed: Mapping[str, File]) -> str:
        """Return the text of a small file; an empty one, if the repository doesn't have it."""
        if name not in listed:
            return ""
        if path := self._cached(name):
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
        """Return the files to download: those that the cache has of no commit."""

        def cached(file: File) -> bool:
            blobs = [folder / "blobs" / (file.blob or "?") for folder in self._folders()]
            return bool(self._cached(file.name)) or any(blob.is_file() for blob in blobs)

        return tuple(file for file in needed if not cached(file))

    def count_elements(self, weights: tuple[File, ...]) -> tuple[Counter[str] | None, str | None]:
        """Return what ``disk.count_elements`` does, from headers on the hub if need be."""
        cached = [self._cached(file.name) for file in weights]
        if all(cached):
            return disk.count_elements([path for path in cached if path])
        of_another_format = not all(file.name.endswith(".safetensors") for file in weights)
        if of_another_format or len(weights) > _MOST_HEADERS:
            return None, None
        total: Counter[str] = Counter()
        try:
            with ThreadPoolExecutor(_PARALLEL_HEADERS) as pool:
                for counts in pool.map(self._header, weights):
                    total.update(counts)
        except (errors.SafetensorsParsingError, errors.NotASafetensorsRepoError):
            return None, None
        return total, None

    def _header(self, file: File) -> dict[str, int]:
        metadata = self.api.parse_safetensors_file_metadata(
            self.wanted.model, file.name, revision=self.commit, timeout=PATIENCE_S
        )
        return {str(dtype): count for dtype, count in metadata.parameter_count.items()}

    def _cached(self, name: str) -> Path | None:
        paths = [folder / "snapshots" / self.commit / name for folder in self._folders()]
        return next((path for path in paths if path.is_file()), None)

    def _folders(self) -> list[Path]:
        return repository_folders(self.places.cache(self.wanted), self.wanted.model)


def _file(sibling: Any) -> File:
    """Convert a file of huggingface_hub's listing."""
    blob = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    return File(sibling.rfilename, sibling.size or 0, blob)
