"""Removes expired files, long work and receipts from the volume, hourly by one of its workers."""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from worker.errors import VolumeError
from worker.files import Files
from worker.receipts import sweep_receipts
from worker.routes import kinds
from worker.settings import Settings
from worker.volume import Volume, translate_os_errors

log = logging.getLogger(__name__)

PERIOD_S = 3600.0
# Name of an empty file whose modification time is the time of the last sweep.
MARK_NAME = "swept"
FAILURE_MESSAGE = "expired files could not be removed"


def start_sweeping(settings: Settings) -> None:
    """Remove expired objects from the volume now and every hour, in a daemon thread."""
    threading.Thread(target=_keep_sweeping, args=(settings,), name="sweep", daemon=True).start()


def sweep(settings: Settings) -> int:
    """Remove expired objects unless a worker did so within the last hour; return their number.

    Objects that can't be removed stay until the next sweep.

    Raises:
        VolumeError: The volume fails before it is known whether a worker has swept.
    """
    volume = Volume.from_settings(settings)
    with translate_os_errors():
        # There is nothing to do without a volume, or if the worker stored nothing on it.
        if not volume.root.is_dir() or not volume.worker_path("").is_dir():
            return 0
        mark = volume.worker_path(MARK_NAME)
        # A mark in the future was set by a machine with a wrong clock.
        if mark.exists() and abs(time.time() - mark.stat().st_mtime) < PERIOD_S:
            return 0
        # From here on, no other worker sweeps.
        mark.touch()

    def sweep_files() -> int:
        # If the files in use are unknown, remove none.
        return Files.from_settings(settings).sweep(kinds.input_file_ids_in_use(settings))

    parts: tuple[Callable[[], int], ...] = (
        sweep_files,
        partial(sweep_receipts, settings),
        *(each.sweep for each in kinds.existing_record_collections(settings)),
    )
    removed = 0
    for part in parts:
        try:
            removed += part()
        except VolumeError as error:
            log.warning("%s: %s", FAILURE_MESSAGE, error)
    return removed


def _keep_sweeping(settings: Settings) -> None:
    while True:
        try:
            if removed := sweep(settings):
                log.info(
                    "%d files, batches, fine-tunes and receipts had expired and were removed",
                    removed,
                )
        except VolumeError as error:
            log.warning("%s: %s", FAILURE_MESSAGE, error)
        except Exception:
            # A defect must not end the thread, or the volume would fill.
            log.exception(FAILURE_MESSAGE)
        time.sleep(PERIOD_S)
