"""Downloads a repository into the hub's cache: what is loaded of it, once for all workers.

The layout is that of the hub's own library, so that others find what is here. Its functions for
whole files are not used: they begin again with every process, and rely on locks.
"""

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from huggingface_hub import HfApi, is_offline_mode
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # lazily
    disable_progress_bars,
    validate_repo_id,
)

from worker.store import disk, files, hub, manifest
from worker.store.download.growing import Stopped
from worker.store.download.lease import LOOK_S, Leases
from worker.store.download.meter import Meter, size
from worker.store.download.retry import again
from worker.store.download.transfer import Transfer
from worker.store.files import INDEX
from worker.store.places import STATE, Places, folder, folders
from worker.store.refusals import Reason, Unavailable, unavailable
from worker.store.resolve import DEFAULT_REVISION, Found, NotFound, resolve
from worker.store.snapshot import File, Origin, Wanted

log = logging.getLogger(__name__)

# How long the hub may take to begin an answer.
PATIENCE_S = 15.0
# Files at once, as many as the hub's own library has.
AT_ONCE = 8
# What may be gone when it is asked for again.
_TRANSIENT = frozenset({Reason.RATE_LIMITED, Reason.HUB_FAILS, Reason.UNREACHABLE})


def obtain(
    wanted: Wanted, places: Places, endpoint: str | None = None, newest: bool = False
) -> Found:
    """Return the directory that holds all that is wanted; download what of it is not there.

    Of several workers with the same cache one downloads, and the others wait.

    Args:
        wanted: a directory or a repository.
        places: where it may lie, and where to download it to.
        endpoint: of another hub than the library's own.
        newest: ask the hub, if it answers, whether a branch has moved since it was downloaded.

    Raises:
        Unavailable: it can't be had, or not be stored.
    """
    found = resolve(wanted, places)
    asked = newest and not is_offline_mode()
    if isinstance(found, Found) and not (asked and found.origin is Origin.VOLUME):
        return found
    with hub.failures_told(wanted):
        validate_repo_id(wanted.model)
        if is_offline_mode():
            raise unavailable(wanted, Reason.OFFLINE, "; ".join(found.passed))
    try:
        return _Obtaining(wanted, places, endpoint, found).run()
    except Unavailable as why:
        if isinstance(found, Found) and why.reason in _TRANSIENT:
            log.warning("%s; what is on the volume is used", why.told)
            return found
        raise


class _Obtaining:
    """One download that is wanted: done here, or waited for."""

    def __init__(
        self, wanted: Wanted, places: Places, endpoint: str | None, found: Found | NotFound
    ) -> None:
        self._wanted = wanted
        self._places = places
        self._endpoint = endpoint
        self._newest = isinstance(found, Found)
        self._passed = found.passed
        there = [each for each in folders(places.cache(wanted), wanted.model) if each.is_dir()]
        self._folder = [*there, folder(places.cache(wanted), wanted.model)][0]
        self._told_at = 0.0

    def run(self) -> Found:
        leases = Leases(self._folder / STATE)
        meter = Meter(str(self._wanted))
        with self._no_empty_folders(), hub.failures_told(self._wanted):
            while True:
                with contextlib.suppress(Stopped), leases.taken(meter.read) as lease:
                    if lease:
                        return self._held(meter, lease.lost)
                self._wait(leases)
                found = resolve(self._wanted, self._places)
                if isinstance(found, Found) and not self._newest:
                    return replace(found, passed=self._passed)

    def _held(self, meter: Meter, lost: threading.Event) -> Found:
        """Do what only one does at a time."""
        before = resolve(self._wanted, self._places)
        if isinstance(before, Found) and not self._newest:
            # Whoever held the lease before has just done it.
            return before
        try:
            _Download(self._wanted, self._folder, self._endpoint, meter, lost).run()
        except (hub.HTTPError, OSError, ValueError, Unavailable):
            self._tidy()
            raise
        found = resolve(self._wanted, self._places)
        if isinstance(found, NotFound):
            raise unavailable(self._wanted, Reason.UNWRITABLE, found.passed[-1])
        if found == before:
            return found
        return replace(found, origin=Origin.DOWNLOAD, passed=self._passed)

    def _wait(self, leases: Leases) -> None:
        claim = leases.look()
        if claim and time.monotonic() - self._told_at > Meter.INTERVAL_S:
            self._told_at = time.monotonic()
            so_far = f"{size(claim.done)} of {size(claim.total)}" if claim.total else "beginning"
            log.info("%s: another worker downloads it: %s", self._wanted, so_far)
        time.sleep(LOOK_S)

    @contextlib.contextmanager
    def _no_empty_folders(self) -> Iterator[None]:
        try:
            yield
        except Unavailable:
            with contextlib.suppress(OSError):
                for path in (self._folder / STATE, self._folder, self._folder.parent):
                    path.rmdir()
            raise

    def _tidy(self) -> None:
        """Leave nothing behind of a repository of which nothing came; while the lease is held."""
        with contextlib.suppress(OSError):
            blobs = self._folder / "blobs"
            for path in blobs.glob("*.partial"):
                # Begun, and refused.
                if not path.stat().st_size:
                    path.unlink()
            if blobs.is_dir():
                blobs.rmdir()
            if [path.name for path in self._folder.iterdir()] == [STATE]:
                manifest.forget(self._folder)


class _Download:
    """The download of one commit, by whoever holds the lease."""

    def __init__(
        self,
        wanted: Wanted,
        folder: Path,
        endpoint: str | None,
        meter: Meter,
        stop: threading.Event,
    ) -> None:
        self._wanted = wanted
        self._folder = folder
        self._api = HfApi(endpoint=endpoint)
        self._meter = meter
        self._stop = stop

    def run(self) -> None:
        """Bring all that is wanted, and say so in a manifest."""
        # A log has no place for bars: the meter writes lines.
        disable_progress_bars()
        listed = self._listing()
        if listed.name.lower() != self._wanted.model.lower():
            told = "%s is called %s now: set %s to that"
            log.warning(told, self._wanted.model, listed.name, self._wanted.setting)
        transfer = Transfer(self._api, self._wanted.model, listed.commit, self._folder, self._stop)
        # Which weights there are, an index says.
        first = [listed.files[INDEX]] if INDEX in listed.files else []
        self._transfer(transfer, first)
        index = files.indexed(disk.text(transfer.path(INDEX))) if first else []
        names = files.needed(listed.files, index, self._wanted)
        absent = [name for name in names if name not in listed.files]
        if absent or not files.loadable(names, self._wanted):
            raise unavailable(self._wanted, Reason.NO_FILES, ", ".join(absent[:3]))
        self._check_room([listed.files[name] for name in names], transfer)
        self._transfer(transfer, [listed.files[name] for name in names])
        self._publish(listed)
        transfer.tidy()

    def _listing(self) -> hub.Listing:
        def ask() -> hub.Listing:
            with hub.failures_told(self._wanted):
                return hub.listing(self._api, self._wanted, PATIENCE_S)

        return again(ask, Unavailable, lambda why: why.reason not in _TRANSIENT)

    def _check_room(self, wanted: Sequence[File], transfer: Transfer) -> None:
        missing = sum(file.size - transfer.there(file) for file in wanted)
        cache = self._folder.parent
        free = shutil.disk_usage(cache).free
        if missing > free:
            told = f"{size(missing)} are to be downloaded to {cache}, where {size(free)} are free"
            raise unavailable(self._wanted, Reason.NO_SPACE, told)

    def _transfer(self, transfer: Transfer, wanted: Sequence[File]) -> None:
        """Get files side by side, the largest first; the first failure ends the others."""
        ordered = sorted(wanted, key=lambda file: -file.size)
        total = sum(file.size for file in ordered)
        if sum(map(transfer.there, ordered)) < total:
            manifest.begin(self._folder, transfer.commit)
        with (
            self._meter.of(total, lambda: sum(map(transfer.there, ordered))),
            ThreadPoolExecutor(AT_ONCE) as pool,
        ):
            pending = [pool.submit(transfer.get, file) for file in ordered]
            ended, _ = wait(pending, return_when=FIRST_EXCEPTION)
            failed = [error for each in ended if (error := each.exception())]
            if failed:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise failed[0]

    def _publish(self, listed: hub.Listing) -> None:
        """Say that it is complete: from now on the hub is not asked any more."""
        known = manifest.Manifest(self._wanted.model, listed.commit, tuple(listed.files.values()))
        manifest.write(self._folder, known)
        # A branch leads to what is complete, also if this is the last that happens.
        revision = self._wanted.revision or DEFAULT_REVISION
        if revision != listed.commit:
            manifest.replace(self._folder / "refs" / revision, listed.commit.encode())
