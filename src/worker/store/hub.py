"""Queries the hub about a model, and translates the hub's errors. Writes nothing to the cache."""

import errno
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from logging import getLogger
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import HfApi, errors, get_token, hf_hub_download

from worker.store import disk, files
from worker.store.files import CONFIG, INDEX
from worker.store.places import (
    HASH,
    Places,
    possible_repository_folders,
    repository_folder,
    resolve_on_disk,
)
from worker.store.refusals import ModelUnavailable, Reason, WrongChecksumError
from worker.store.snapshot import Artifact, ArtifactLocation, File, Origin, Snapshot

log = getLogger(__name__)
T = TypeVar("T")

# The HTTP library that defines this error depends on the release of huggingface_hub.
HTTPError: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]  # imported for internal use

# Seconds to wait for the hub's response.
TIMEOUT_S = 4.0
# Maximum seconds of each pause between attempts. Pauses are random, so that not all workers retry
# at the same time.
MAX_PAUSES_S = (1.0, 2.0, 4.0)
# Matches text that consists of characters which an HTTP header can contain.
_TOKEN = re.compile(r"[!-~]*")
# Number of safetensors headers to read concurrently, and their maximum number in total.
_PARALLEL_HEADERS = 16
_MAX_HEADERS = 64
# Number of files to download concurrently, and the maximum size of a file that isn't counted among
# the weights: the largest tokenizers have less than 40 MB.
_PARALLEL_DOWNLOADS = 8
_MAX_SMALL_BYTES = 64_000_000


@dataclass(frozen=True)
class RepositoryListing:
    """A repository's files at a commit, by name; ``name`` is the repository's current name."""

    name: str
    commit: str
    files: Mapping[str, File]
    gated: bool


def list_files(api: HfApi, artifact: Artifact, timeout_s: float = TIMEOUT_S) -> RepositoryListing:
    """Return the current commit of a revision, and its files."""
    if not api.endpoint.isprintable():
        # For such characters, the HTTP library would raise an error that is no ``HTTPError``.
        raise ValueError("no address")
    info = api.model_info(
        artifact.model, revision=artifact.revision, files_metadata=True, timeout=timeout_s
    )
    listed = {}
    for one in info.siblings or ():
        if files.is_inside_folder(one.rfilename):
            blob = one.lfs.sha256 if one.lfs else one.blob_id
            listed[one.rfilename] = File(one.rfilename, one.size or 0, blob)
    hashes = [str(info.sha), *(str(file.blob) for file in listed.values())]
    if not all(map(HASH.fullmatch, hashes)):
        # The hashes become file names on the disk.
        raise ValueError("no hashes")
    return RepositoryListing(info.id, str(info.sha), listed, bool(info.gated))


def find_snapshot(
    artifact: Artifact, places: Places, folder: Path, endpoint: str | None = None
) -> Snapshot:
    """Find a model on the disk or on the hub, as a worker does at startup, without its weights.

    ``folder`` is for the other files of a model that is on the hub only. ``endpoint`` is the
    address of a hub other than the library's default. ``ModelUnavailable`` says why there is none.
    """
    location = resolve_on_disk(artifact, places)
    if isinstance(location, ArtifactLocation):
        refusal = None
        if location.origin is Origin.DIRECTORY:
            try:
                disk.check_directory(location)
            except ModelUnavailable as error:
                if error.reason is not Reason.BROKEN_FILES:
                    raise
                refusal = error
        return replace(disk.read_snapshot(location), refusal=refusal)
    api = HfApi(endpoint=endpoint)
    with translate_errors(artifact):
        listing = list_files(api, artifact)
        commit = _HubCommit(api, artifact, listing.commit, places)
        names = files.non_weight_files(listing.files, artifact.code)
        small = [name for name in names if listing.files[name].size <= _MAX_SMALL_BYTES]
        # Listing a gated repository's files needs no access to it, but reading a file does.
        place = commit.download(small, folder)

        def read_text(name: str) -> str:
            return disk.read_text_or_empty(place / name)

        if wrong := disk.find_wrong_kind([*listing.files], read_text, artifact):
            raise ModelUnavailable(artifact, *wrong)
        needed = files.needed_files(listing.files, read_text(INDEX), artifact)
        absent, refusal = [name for name in needed if name not in listing.files], None
        if absent or not files.has_required_files(needed, artifact):
            refusal = ModelUnavailable(artifact, Reason.NO_FILES, ", ".join(absent[:3]))
        named = files.weight_files(listing.files, read_text(INDEX), artifact)
        weights = tuple(listing.files[name] for name in named if name in listing.files)
        others = tuple(listing.files[name] for name in names)
        return Snapshot(
            model=artifact.model,
            origin=Origin.DOWNLOAD,
            directory=repository_folder(places.download_cache(artifact), artifact.model),
            small_files=place,
            commit=listing.commit,
            weights=weights,
            others=others,
            not_downloaded=commit.missing_files(weights + others),
            config=files.parse_json_object(read_text(CONFIG)),
            tensors=commit.count_elements(weights),
            refusal=refusal,
            gated=listing.gated,
            skipped=location.skipped,
        )


def retry(call: Callable[[], T], failure: type[Exception], is_final: Callable[[Any], bool]) -> T:
    """Return the result of a call; after a failure, pause and call again, up to 4 calls in total.

    ``is_final`` returns whether retrying after such a failure is useless.
    """
    for longest_s in MAX_PAUSES_S:
        try:
            return call()
        except failure as error:
            if is_final(error):
                raise
            pause_s = random.uniform(0, longest_s)
            log.warning("%s; retrying in %.1f s", error, pause_s)
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
# Reasons for responses without one of the hub's error codes.
_BY_STATUS: dict[int, Reason] = {
    HTTPStatus.FORBIDDEN: Reason.NO_ACCESS,
    HTTPStatus.NOT_FOUND: Reason.MISSING,
    HTTPStatus.GONE: Reason.MISSING,
    HTTPStatus.UNAVAILABLE_FOR_LEGAL_REASONS: Reason.MISSING,
    HTTPStatus.TOO_MANY_REQUESTS: Reason.RATE_LIMITED,
}
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def translate_errors(artifact: Artifact) -> Iterator[None]:
    """Raise the block's errors that come from the hub or the disk as ``ModelUnavailable``."""
    try:
        yield
    except (HTTPError, OSError, ValueError) as error:
        # ValueError: invalid address or header, or a response that is not JSON.
        reason = _find_reason(error)
        is_disk_error = reason in (Reason.NO_SPACE, Reason.UNWRITABLE, Reason.WRONG_CHECKSUM)
        parts = [getattr(error, name, None) for name in ("strerror", "filename")]
        detail = ": ".join(str(part) for part in parts if part) if is_disk_error else ""
        raise ModelUnavailable(artifact, reason, detail) from error


def _find_reason(error: Exception) -> Reason:
    reason = next((reason for class_, reason in _REASONS if isinstance(error, class_)), None)
    number = getattr(error, "errno", None)
    if reason is None and number and not isinstance(error, HTTPError):
        return Reason.NO_SPACE if number in _DISK_FULL else Reason.UNWRITABLE
    token = get_token() or ""
    if reason is None:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        reason = _BY_STATUS.get(status, Reason.HUB_FAILS if status else Reason.UNREACHABLE)
        if status == HTTPStatus.UNAUTHORIZED:
            reason = Reason.BAD_TOKEN
        elif not _TOKEN.fullmatch(token):
            # huggingface_hub can't send such a token.
            reason = Reason.ODD_TOKEN
    return Reason.TOKEN_MISSING if reason is Reason.NO_ACCESS and not token else reason


@dataclass(frozen=True)
class _HubCommit:
    """One commit of a repository on the hub, and its files in the cache."""

    api: HfApi
    artifact: Artifact
    commit: str
    places: Places

    def download(self, names: Sequence[str], folder: Path) -> Path:
        place = Path(tempfile.mkdtemp(dir=folder)) / Path(self.artifact.model).name
        place.mkdir()

        def download(name: str) -> None:
            hf_hub_download(
                self.artifact.model,
                name,
                revision=self.commit,
                local_dir=place,
                endpoint=self.api.endpoint,
                etag_timeout=TIMEOUT_S,
            )

        with ThreadPoolExecutor(_PARALLEL_DOWNLOADS) as pool:
            # Iterating raises the first error.
            for _ in pool.map(download, names):
                pass
        return place

    def missing_files(self, needed: tuple[File, ...]) -> tuple[File, ...]:
        """Return the files to download: those that the cache doesn't have, in any commit."""

        def is_cached(file: File) -> bool:
            blobs = [folder / "blobs" / (file.blob or "?") for folder in self._cache_folders()]
            return bool(self._cached_path(file.name)) or any(blob.is_file() for blob in blobs)

        return tuple(file for file in needed if not is_cached(file))

    def count_elements(self, weights: tuple[File, ...]) -> Counter[str] | None:
        """Return the same as ``disk.count_elements``, with up to 64 headers from the hub."""
        cached = [self._cached_path(file.name) for file in weights]
        if all(cached):
            return disk.count_elements([path for path in cached if path])[0]
        is_other_format = not all(file.name.endswith(".safetensors") for file in weights)
        if is_other_format or len(weights) > _MAX_HEADERS:
            return None
        total: Counter[str] = Counter()
        try:
            with ThreadPoolExecutor(_PARALLEL_HEADERS) as pool:
                for counts in pool.map(self._element_counts_in_header, weights):
                    total.update(counts)
        except (errors.SafetensorsParsingError, errors.NotASafetensorsRepoError):
            return None
        return total

    def _element_counts_in_header(self, file: File) -> dict[str, int]:
        metadata = self.api.parse_safetensors_file_metadata(
            self.artifact.model, file.name, revision=self.commit, timeout=TIMEOUT_S
        )
        return {str(dtype): count for dtype, count in metadata.parameter_count.items()}

    def _cached_path(self, name: str) -> Path | None:
        paths = [folder / "snapshots" / self.commit / name for folder in self._cache_folders()]
        return next((path for path in paths if path.is_file()), None)

    def _cache_folders(self) -> list[Path]:
        return possible_repository_folders(
            self.places.download_cache(self.artifact), self.artifact.model
        )
