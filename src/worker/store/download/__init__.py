"""Downloads the needed files of a repository into the hub's cache, once for all workers.

The cache has the layout of huggingface_hub, so that its functions find the files. Its functions for
downloads are not used: they start from the beginning in every process, and rely on file locks.
"""

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import replace

from huggingface_hub import HfApi, is_offline_mode
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # exported lazily
    disable_progress_bars,
    validate_repo_id,
)
from tqdm import tqdm

from worker.store import disk, files, hub, manifest
from worker.store.download.transfer import CommitDownloader, DownloadStopped
from worker.store.files import INDEX
from worker.store.manifest import STATE_FOLDER
from worker.store.places import (
    DEFAULT_REVISION,
    Places,
    is_on_container_disk,
    possible_repository_folders,
    repository_folder,
    resolve_on_disk,
)
from worker.store.refusals import ModelUnavailable, Reason
from worker.store.snapshot import Artifact, ArtifactLocation, File, Origin, UnlocatedArtifact
from worker.volume import durable
from worker.volume.lease import POLL_S, LeaseDirectory

log = logging.getLogger(__name__)

# Seconds to wait for the hub's response to a request for a listing.
LISTING_TIMEOUT_S = 15.0
# Number of concurrent downloads of files, the same as in huggingface_hub.
PARALLEL = 8
# Seconds between two checks of the lease and the progress.
WATCH_INTERVAL_S = 0.5
# Seconds that threads have to finish after one has failed or the lease is lost.
GRACE_S = 1.0
# Reasons that may no longer apply at the next attempt.
_TRANSIENT_REASONS = frozenset({Reason.RATE_LIMITED, Reason.HUB_FAILS, Reason.UNREACHABLE})


def obtain_artifact(
    artifact: Artifact, places: Places, endpoint: str | None = None, refresh: bool = False
) -> ArtifactLocation:
    """Return the location of an artifact; download the artifact if necessary.

    Only one of several workers with the same cache downloads; the others wait for it. ``endpoint``
    is the address of a hub other than the library's default. With ``refresh``, an artifact on the
    volume is replaced if the hub has a newer commit.
    """
    location = resolve_on_disk(artifact, places)
    query = refresh and not is_offline_mode()
    if isinstance(location, ArtifactLocation) and not (query and location.origin is Origin.VOLUME):
        return location
    with hub.translate_errors(artifact):
        validate_repo_id(artifact.model)
        if is_offline_mode():
            raise ModelUnavailable(artifact, Reason.OFFLINE, "; ".join(location.skipped))
    try:
        return _Download(artifact, places, endpoint, location).run()
    except ModelUnavailable as why:
        # If the hub fails, use the artifact on the volume without looking for a newer commit.
        if isinstance(location, ArtifactLocation) and why.reason in _TRANSIENT_REASONS:
            log.warning("%s; using the copy on the volume", why.problem)
            return location
        raise


class _Download:
    """Downloads an artifact, or waits until another worker has downloaded it."""

    def __init__(
        self,
        artifact: Artifact,
        places: Places,
        endpoint: str | None,
        location: ArtifactLocation | UnlocatedArtifact,
    ) -> None:
        self._artifact = artifact
        self._places = places
        self._api = HfApi(endpoint=endpoint)
        self._refresh = isinstance(location, ArtifactLocation)
        self._skipped = location.skipped
        cache = places.download_cache(artifact)
        existing = [
            path for path in possible_repository_folders(cache, artifact.model) if path.is_dir()
        ]
        self._folder = [*existing, repository_folder(cache, artifact.model)][0]
        self._meter = ProgressMeter(str(artifact))

    def run(self) -> ArtifactLocation:
        leases, logged_at = LeaseDirectory(self._folder / STATE_FOLDER), 0.0
        try:
            with hub.translate_errors(self._artifact):
                while True:
                    with (
                        contextlib.suppress(DownloadStopped),
                        leases.acquire(self._meter.stored_and_total_bytes) as lease,
                    ):
                        if lease:
                            return self._download(lease.lost)
                    # Another worker holds the lease, or this one has just lost it.
                    claim = leases.poll_claim()
                    if claim and time.monotonic() - logged_at > ProgressMeter.INTERVAL_S:
                        logged_at = time.monotonic()
                        sizes = f"{format_size(claim.done)} of {format_size(claim.total)}"
                        progress = sizes if claim.total else "beginning"
                        text = "%s: another worker is downloading it: %s"
                        log.info(text, self._artifact, progress)
                    time.sleep(POLL_S)
                    location = resolve_on_disk(self._artifact, self._places)
                    if isinstance(location, ArtifactLocation) and not self._refresh:
                        return replace(location, skipped=self._skipped)
        except ModelUnavailable:
            # Remove the repository's folders, as far as they are empty.
            with contextlib.suppress(OSError):
                for path in (self._folder / STATE_FOLDER, self._folder, self._folder.parent):
                    path.rmdir()
            raise

    def _download(self, lost: threading.Event) -> ArtifactLocation:
        """Download as the lease's holder, unless the previous holder has completed the download."""
        before = resolve_on_disk(self._artifact, self._places)
        if isinstance(before, ArtifactLocation) and not self._refresh:
            return before
        try:
            self._download_files(lost)
        except (hub.HTTPError, OSError, ValueError, ModelUnavailable):
            self._remove_empty_partials()
            raise
        location = resolve_on_disk(self._artifact, self._places)
        if isinstance(location, UnlocatedArtifact):
            raise ModelUnavailable(self._artifact, Reason.UNWRITABLE, location.skipped[-1])
        if location == before:
            return location
        return replace(
            location,
            origin=Origin.DOWNLOAD,
            skipped=self._skipped,
            downloaded_bytes=self._meter.downloaded_bytes,
            download_s=self._meter.download_s,
        )

    def _download_files(self, stop: threading.Event) -> None:
        """Download all needed files of the current commit, then write the manifest.

        The lease sets ``stop`` when it is lost; this method sets it when a file fails.
        """
        # Progress bars don't fit into a log: the meter logs lines instead.
        disable_progress_bars()

        def list_files() -> hub.RepositoryListing:
            with hub.translate_errors(self._artifact):
                return hub.list_files(self._api, self._artifact, LISTING_TIMEOUT_S)

        listing = hub.retry(
            list_files, ModelUnavailable, lambda why: why.reason not in _TRANSIENT_REASONS
        )
        if listing.name.lower() != self._artifact.model.lower():
            text = "%s is now called %s: set %s to the new name"
            log.warning(text, self._artifact.model, listing.name, self._artifact.setting)
        transfer = CommitDownloader(
            self._api, self._artifact.model, listing.commit, self._folder, stop
        )

        def read_text(name: str) -> str:
            if name not in listing.files:
                return ""
            self._download_concurrently(transfer, [listing.files[name]])
            return disk.read_text_or_empty(transfer.snapshot_path(name))

        # The index lists the weights, so it is needed first.
        index = read_text(INDEX)
        if wrong := disk.find_wrong_kind([*listing.files], read_text, self._artifact):
            raise ModelUnavailable(self._artifact, *wrong)
        names = files.needed_files(listing.files, index, self._artifact)
        missing_names = [name for name in names if name not in listing.files]
        if missing_names or not files.has_required_files(names, self._artifact):
            raise ModelUnavailable(self._artifact, Reason.NO_FILES, ", ".join(missing_names[:3]))
        needed = [listing.files[name] for name in names]

        missing = sum(file.size - transfer.stored_bytes(file) for file in needed)
        cache = self._folder.parent
        total, _, free = shutil.disk_usage(cache)
        if missing > free:
            sizes = format_size(missing), format_size(free)
            text = f"the download to {cache} needs {sizes[0]}, and {sizes[1]} are free"
            # If this machine's own disk is large enough but full, another machine's may have space.
            is_full = missing <= total and is_on_container_disk(cache)
            reason = Reason.FULL_DISK if is_full else Reason.NO_SPACE
            raise ModelUnavailable(self._artifact, reason, text)

        self._download_concurrently(transfer, needed)
        # With a manifest and a branch, workers need no query to the hub. Write the branch last: it
        # must refer to a complete commit even if this process is killed.
        sizes_by_name = {name: file.size for name, file in listing.files.items()}
        manifest.write(self._folder, listing.commit, sizes_by_name)
        revision = self._artifact.revision or DEFAULT_REVISION
        if revision != listing.commit:
            durable.write_file(self._folder / "refs" / revision, listing.commit.encode())
        transfer.remove_partials()

    def _download_concurrently(self, transfer: CommitDownloader, needed: Sequence[File]) -> None:
        """Download files concurrently, the largest first; the first failure stops the others."""
        ordered = sorted(needed, key=lambda file: -file.size)
        total = sum(file.size for file in ordered)
        if sum(map(transfer.stored_bytes, ordered)) < total:
            manifest.mark_download_started(self._folder, transfer.commit)
        pool = ThreadPoolExecutor(PARALLEL)
        pending: set[Future[None]] = set()
        self._meter.begin(total, lambda: sum(map(transfer.stored_bytes, ordered)))
        try:
            pending = {pool.submit(transfer.download_file, file) for file in ordered}
            while pending:
                if transfer.stop.is_set():
                    raise DownloadStopped
                done, pending = wait(pending, WATCH_INTERVAL_S, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                self._meter.log_progress()
            self._meter.log_duration()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            if pending:
                transfer.stop.set()
                # Threads that wait longer for the hub are abandoned: they write nothing more.
                wait([future for future in pending if not future.cancelled()], GRACE_S)

    def _remove_empty_partials(self) -> None:
        with contextlib.suppress(OSError):
            blobs = self._folder / "blobs"
            for path in blobs.glob("*.partial"):
                if not path.stat().st_size:
                    path.unlink()
            if blobs.is_dir():
                blobs.rmdir()
            if [path.name for path in self._folder.iterdir()] == [STATE_FOLDER]:
                manifest.remove_started_download_marks(self._folder)


class ProgressMeter:
    """Logs the number of bytes on the disk, including those that other workers have downloaded.

    ``downloaded_bytes`` and ``download_s`` are of the whole download; 0 before its end.
    """

    INTERVAL_S = 5.0

    def __init__(self, name: str) -> None:
        self._name = name
        self._total = self.downloaded_bytes = 0
        self.download_s = 0.0
        self._done: Callable[[], int] = int

    def stored_and_total_bytes(self) -> tuple[int, int]:
        return self._done(), self._total

    def begin(self, total: int, done: Callable[[], int]) -> None:
        """Start measuring: ``done`` returns the bytes on the disk, which ``total`` includes."""
        self._total, self._done, self._before = total, done, done()
        self._begun = self._logged_at = time.monotonic()

    def log_progress(self) -> None:
        """Log the progress, at most once per interval."""
        if time.monotonic() - self._logged_at < self.INTERVAL_S:
            return
        self._logged_at = time.monotonic()
        done, total = self.stored_and_total_bytes()
        rate = (done - self._before) / (time.monotonic() - self._begun)
        left = f"{tqdm.format_interval((total - done) / rate)} left" if rate else "nothing comes"
        part = 100 * done / total if total else 100
        sizes = f"{format_size(done)} of {format_size(total)}"
        text = "%s: %s (%.0f %%), %s/s, %s"
        log.info(text, self._name, sizes, part, format_size(rate), left)

    def log_duration(self) -> None:
        if self._total > self._before:
            elapsed = time.monotonic() - self._begun
            size = self._total - self._before
            self.downloaded_bytes, self.download_s = size, elapsed
            rate = format_size(size / elapsed)
            text = "%s: %s downloaded in %.1f s, %s/s"
            log.info(text, self._name, format_size(size), elapsed, rate)


def format_size(count: float) -> str:
    """Format a number of bytes in powers of ten, as the hub's pages do: 1.50MB."""
    return str(tqdm.format_sizeof(count, "B"))
