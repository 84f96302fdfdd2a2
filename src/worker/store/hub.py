"""What the hub says of a model: asked with short patience, and nothing kept on the disk."""

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, errors, get_token, hf_hub_download

from worker.store import disk, files
from worker.store.files import CONFIG, INDEX
from worker.store.snapshot import File, Origin, Reason, Snapshot, Unavailable, Wanted

# Which of the hub's HTTP libraries it is depends on the hub's release.
_HTTPError: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]  # for its own use

# What a header can carry.
_TOKEN = re.compile(r"[!-~]*")
# How long an answer may take to begin.
PATIENCE_S = 4.0
# Headers of shards asked for at once.
_AT_ONCE = 16
# Of more shards the headers are not asked for: that would take longer than they are worth.
_MOST_HEADERS = 64


def ask(wanted: Wanted, endpoint: str | None = None) -> Snapshot:
    """Describe a model as the hub has it, and what of it the cache lacks.

    Args:
        wanted: the model.
        endpoint: of another hub than the library's own.

    Raises:
        Unavailable: the hub does not have it, does not give it, or does not answer.
    """
    api = HfApi(endpoint=endpoint)
    with _failures_told(wanted):
        if not api.endpoint.isprintable():
            # The HTTP library's own error for it is no kind of any other.
            raise ValueError("no address")
        info = api.model_info(
            wanted.model, revision=wanted.revision, files_metadata=True, timeout=PATIENCE_S
        )
        siblings = [each for each in info.siblings or () if files.inside(each.rfilename)]
        sizes = {each.rfilename: _file(each) for each in siblings}
        asked = _Asked(api, wanted, str(info.sha))
        # A gated repository lists its files to anybody: only reading one shows who may.
        config = files.json_object(asked.text(CONFIG, sizes))
        index = files.indexed(asked.text(INDEX, sizes))
        named = files.weights(sizes, index, wanted.load_format)
        weights = tuple(sizes[name] for name in named if name in sizes)
        tensors, damaged = asked.counted(weights)
        missing = asked.missing(weights + tuple(sizes[name] for name in files.others(sizes)))
        return Snapshot(
            model=wanted.model,
            origin=Origin.DOWNLOAD if missing else Origin.CACHE,
            place=disk.caches(wanted)[0],
            commit=info.sha,
            weights=weights,
            others=tuple(sizes[name] for name in files.others(sizes)),
            missing=missing,
            lacking=tuple(name for name in named if name not in sizes),
            config=config,
            tensors=tensors,
            damaged=damaged,
            gated=bool(info.gated),
        )


# The most specific first: what is gated counts as not found, too.
_REASONS: tuple[tuple[type[Exception], Reason], ...] = (
    (errors.HFValidationError, Reason.NOT_A_REPOSITORY),
    (errors.OfflineModeIsEnabled, Reason.OFFLINE),
    (errors.GatedRepoError, Reason.NO_ACCESS),
    (errors.RepositoryNotFoundError, Reason.MISSING),
    (errors.RevisionNotFoundError, Reason.REVISION_MISSING),
)

# What is wrong, and what can be done.
_TOLD = {
    Reason.NOT_A_REPOSITORY: (
        "neither a directory nor a repository's name",
        "write a repository as owner/name, a directory with its whole path",
    ),
    Reason.OFFLINE: (
        "not complete in the cache, and HF_HUB_OFFLINE forbids to ask the hub",
        "unset HF_HUB_OFFLINE, or download the model first",
    ),
    Reason.TOKEN_MISSING: (
        "the repository is gated, and HF_TOKEN is not set",
        "accept its licence on its page on the hub, then set HF_TOKEN",
    ),
    Reason.NO_ACCESS: (
        "the repository is gated, and HF_TOKEN gives no access to it",
        "accept its licence on its page on the hub, as the owner of the token",
    ),
    Reason.MISSING: (
        "the hub has no such repository, or hides it",
        "mend the name; for a private repository set HF_TOKEN to a token that may read it",
    ),
    Reason.REVISION_MISSING: (
        "the repository has no such revision",
        "name a branch, a tag or a commit that it has",
    ),
    Reason.BAD_TOKEN: ("the hub refuses HF_TOKEN", "make a new token, or unset it"),
    Reason.ODD_TOKEN: (
        "HF_TOKEN holds characters that no token has",
        "copy it again, without quotation marks, spaces and line breaks",
    ),
    Reason.UNREACHABLE: (
        "the hub does not answer",
        "look whether it can be reached from here, and try again",
    ),
}


@contextmanager
def _failures_told(wanted: Wanted) -> Iterator[None]:
    try:
        yield
    except (_HTTPError, OSError, ValueError) as error:
        # Values are wrong in what makes no address or no header, and in answers that are no JSON.
        name = f"{wanted.model}@{wanted.revision}" if wanted.revision else wanted.model
        raise unavailable(name, _reason(error)) from error


def unavailable(name: str, reason: Reason) -> Unavailable:
    """Tell why a model can't be had, and what can be done."""
    told, remedy = _TOLD[reason]
    return Unavailable(reason, f"{name}: {told}", remedy)


def _reason(error: Exception) -> Reason:
    status = getattr(getattr(error, "response", None), "status_code", None)
    unknown = Reason.BAD_TOKEN if status == HTTPStatus.UNAUTHORIZED else _unanswered()
    reason = next((reason for class_, reason in _REASONS if isinstance(error, class_)), unknown)
    no_token = reason is Reason.NO_ACCESS and not get_token()
    return Reason.TOKEN_MISSING if no_token else reason


def _unanswered() -> Reason:
    """Say why there was no answer: what no header can carry is not even sent."""
    return Reason.UNREACHABLE if _TOKEN.fullmatch(get_token() or "") else Reason.ODD_TOKEN


@dataclass(frozen=True)
class _Asked:
    """One commit of a repository on the hub, and what the cache has of it."""

    api: HfApi
    wanted: Wanted
    commit: str

    def text(self, name: str, sizes: dict[str, File]) -> str:
        """Read a small file; without one, nothing."""
        if name not in sizes:
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
        caches = disk.caches(self.wanted)

        def kept(file: File) -> bool:
            blobs = [cache / "blobs" / (file.blob or "?") for cache in caches]
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
        places = [place / name for place in disk.snapshots(self.wanted, self.commit)]
        return next((place for place in places if place.is_file()), None)


def _file(sibling: Any) -> File:
    blob = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    return File(sibling.rfilename, sibling.size or 0, blob)
