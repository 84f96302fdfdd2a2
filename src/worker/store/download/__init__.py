"""Downloads what is loaded of a repository into the hub's cache, once for all workers.

The layout is that of huggingface_hub, so that its readers find what is there. Its functions for
downloads are not used: they begin anew in every process, and rely on file locks.
"""

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import replace

from huggingface_hub import HfApi, is_offline_mode
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # exported lazily
    disable_progress_bars,
    validate_repo_id,
)

from worker import volume
from worker.store import disk, files, hub, manifest
from worker.store.download.meter import Meter, size
from worker.store.download.transfer import Stopped, Transfer
from worker.store.files import INDEX
from worker.store.places import (
    STATE,
    Places,
    on_own_disk,
    repository_folder,
    repository_folders,
)
from worker.store.refusals import Reason, Unavailable
from worker.store.resolve import DEFAULT_REVISION, resolve
from worker.store.snapshot import File, Found, NotFound, Origin, Wanted
from worker.volume.lease import LOOK_S, Leases

log = logging.getLogger(__name__)

# Seconds until the hub begins to answer a request for a listing.
PATIENCE_S = 15.0
# Files downloaded at once, as many as huggingface_hub has.
PARALLEL = 8
# Seconds between two looks at whether the lease is lost, and at the progress.
LOOK_AGAIN_S = 0.5
# Seconds that threads have to end once one has failed, or the lease is lost.
GRACE_S = 1.0
# Reasons that may be gone at the next attempt.
_TRANSIENT = frozenset({Reason.RATE_LIMITED, Reason.HUB_FAILS, Reason.UNREACHABLE})


def obtain(
    wanted: Wanted, places: Places, endpoint: str | None = None, newest: bool = False
) -> Found:
    """Return the directory that has all that is wanted, after a download if one is needed.

    Of several workers with the same cache one downloads, and the others wait for it.

    Args:
        endpoint: address of another hub than the library's own.
        newest: ask the hub whether a branch has moved since it was downloaded. If the hub fails,
            what is on the volume is returned.

    Raises:
        Unavailable: it can't be downloaded, or not be stored.
    """
    found = resolve(wanted, places)
    asks = newest and not is_offline_mode()
    if isinstance(found, Found) and not (asks and found.origin is Origin.VOLUME):
        return found
    with hub.translated(wanted):
        validate_repo_id(wanted.model)
        if is_offline_mode():
            raise Unavailable(wanted, Reason.OFFLINE, "; ".join(found.passed))
    try:
        return _Download(wanted, places, endpoint, found).run()
    except Unavailable as why:
        if isinstance(found, Found) and why.reason in _TRANSIENT:
            log.warning("%s; what is on the volume is used", why.problem)
            return found
        raise


class _Download:
    """Downloads what is wanted, or waits until another worker has."""

    def __init__(
        self, wanted: Wanted, places: Places, endpoint: str | None, found: Found | NotFound
    ) -> None:
        self._wanted = wanted
        self._places = places
        self._api = HfApi(endpoint=endpoint)
        self._newest = isinstance(found, Found)
        self._passed = found.passed
        cache = places.cache(wanted)
        existing = [path for path in repository_folders(cache, wanted.model) if path.is_dir()]
        self._folder = [*existing, repository_folder(cache, wanted.model)][0]
        self._meter = Meter(str(wanted))
        self._logged_at = 0.0

    def run(self) -> Found:
        leases = Leases(self._folder / STATE)
        with self._no_empty_folders(), hub.translated(self._wanted):
            while True:
                with contextlib.suppress(Stopped), leases.taken(self._meter.read) as lease:
                    if lease:
                        return self._download(lease.lost)
                self._wait(leases)
                found = resolve(self._wanted, self._places)
                if isinstance(found, Found) and not self._newest:
                    return replace(found, passed=self._passed)

    def _download(self, lost: threading.Event) -> Found:
        """Download, holding the lease; unless the worker that held it before has just done so."""
        before = resolve(self._wanted, self._places)
        if isinstance(before, Found) and not self._newest:
            return before
        try:
            self._obtain_all(lost)
        except (hub.HTTPError, OSError, ValueError, Unavailable):
            self._remove_empty_partials()
            raise
        found = resolve(self._wanted, self._places)
        if isinstance(found, NotFound):
            raise Unavailable(self._wanted, Reason.UNWRITABLE, found.passed[-1])
        if found == before:
            return found
        return replace(found, origin=Origin.DOWNLOAD, passed=self._passed)

    def _obtain_all(self, stop: threading.Event) -> None:
        """Download all files that are wanted of a commit, then write the manifest.

        ``stop`` is set by the lease when it is lost, and here when a file fails.

        Raises:
            Stopped: the lease is lost.
            Unavailable: the repository lacks files, or the disk has too little room.
            Exception: what ``hub.translated`` translates.
        """
        # A log has no place for bars: the meter writes lines.
        disable_progress_bars()
        listed = self._listing()
        if listed.name.lower() != self._wanted.model.lower():
            text = "%s is called %s now: set %s to that"
            log.warning(text, self._wanted.model, listed.name, self._wanted.setting)
        transfer = Transfer(self._api, self._wanted.model, listed.commit, self._folder, stop)
        # The index says which weights there are.
        first = [listed.files[INDEX]] if INDEX in listed.files else []
        self._fetch(transfer, first)
        index = disk.text(transfer.path(INDEX)) if first else ""
        names = files.needed(listed.files, index, self._wanted)
        absent = [name for name in names if name not in listed.files]
        if absent or not files.loadable(names, self._wanted):
            raise Unavailable(self._wanted, Reason.NO_FILES, ", ".join(absent[:3]))
        self._check_room([listed.files[name] for name in names], transfer)
        self._fetch(transfer, [listed.files[name] for name in names])
        self._publish(listed)
        transfer.tidy()

    def _listing(self) -> hub.Listing:
        def ask() -> hub.Listing:
            with hub.translated(self._wanted):
                return hub.listing(self._api, self._wanted, PATIENCE_S)

        return hub.retry(ask, Unavailable, lambda why: why.reason not in _TRANSIENT)

    def _check_room(self, needed: Sequence[File], transfer: Transfer) -> None:
        missing = sum(file.size - transfer.stored(file) for file in needed)
        cache = self._folder.parent
        total, _, free = shutil.disk_usage(cache)
        if missing > free:
            text = f"{size(missing)} are to be downloaded to {cache}, where {size(free)} are free"
            # A machine's own disk that is large enough is full of what another has not.
            full = missing <= total and on_own_disk(cache)
            raise Unavailable(self._wanted, Reason.FULL_DISK if full else Reason.NO_SPACE, text)

    def _fetch(self, transfer: Transfer, needed: Sequence[File]) -> None:
        """Download files in parallel, the largest first. The first failure ends the others."""
        ordered = sorted(needed, key=lambda file: -file.size)
        total = sum(file.size for file in ordered)
        if sum(map(transfer.stored, ordered)) < total:
            manifest.mark_begun(self._folder, transfer.commit)
        pool = ThreadPoolExecutor(PARALLEL)
        pending: set[Future[None]] = set()
        self._meter.begin(total, lambda: sum(map(transfer.stored, ordered)))
        try:
            pending = {pool.submit(transfer.get, file) for file in ordered}
            while pending:
                if transfer.stop.is_set():
                    raise Stopped
                done, pending = wait(pending, LOOK_AGAIN_S, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                self._meter.tick()
            self._meter.end()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            if pending:
                transfer.stop.set()
                # Threads that still wait for the hub then are left behind: they write no more.
                wait([future for future in pending if not future.cancelled()], GRACE_S)

    def _publish(self, listed: hub.Listing) -> None:
        """Write the manifest, then the branch: from now on the hub is not asked any more."""
        sizes = {name: file.size for name, file in listed.files.items()}
        manifest.write(self._folder, listed.commit, sizes)
        # Last: a branch leads to a complete commit, wherever this process ends.
        revision = self._wanted.revision or DEFAULT_REVISION
        if revision != listed.commit:
            volume.write(self._folder / "refs" / revision, listed.commit.encode())

    def _wait(self, leases: Leases) -> None:
        """Look at the other worker's lease, log its progress now and then, and sleep."""
        claim = leases.look()
        if claim and time.monotonic() - self._logged_at > Meter.INTERVAL_S:
            self._logged_at = time.monotonic()
            so_far = f"{size(claim.done)} of {size(claim.total)}" if claim.total else "beginning"
            log.info("%s: another worker downloads it: %s", self._wanted, so_far)
        time.sleep(LOOK_S)

    @contextlib.contextmanager
    def _no_empty_folders(self) -> Iterator[None]:
        """Remove the repository's folders after a refusal, as far as they are empty."""
        try:
            yield
        except Unavailable:
            with contextlib.suppress(OSError):
                for path in (self._folder / STATE, self._folder, self._folder.parent):
                    path.rmdir()
            raise

    def _remove_empty_partials(self) -> None:
        """Remove what a refused download has created of a repository that nothing came of."""
        with contextlib.suppress(OSError):
            blobs = self._folder / "blobs"
            for path in blobs.glob("*.partial"):
                if not path.stat().st_size:
                    path.unlink()
            if blobs.is_dir():
                blobs.rmdir()
            if [path.name for path in self._folder.iterdir()] == [STATE]:
                manifest.forget(self._folder)
