"""Removes what has expired on the volume, once an hour by one of the workers that share it."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from worker.errors import VolumeError
from worker.files import Files
from worker.long_work import kinds
from worker.settings import Settings
from worker.volume import Volume, failures

log = logging.getLogger(__name__)

PERIOD_S = 3600.0
# Empty; when it was written is when somebody last swept.
MARK = "swept"
FAILED = "what has expired could not be removed"


def begin(settings: Settings) -> None:
    """Sweep now and every hour, in a thread that ends with the process."""
    threading.Thread(target=_keep_sweeping, args=(settings,), name="sweep", daemon=True).start()


def sweep(settings: Settings) -> int:
    """Remove what has expired, unless that was done within the hour; return how much there was.

    What the volume fails at stays until the next time.

    Raises:
        VolumeError: there is no telling whether somebody has swept.
    """
    volume = Volume.of(settings)
    with failures():
        # Without a volume, and on one that nothing was kept on, there is nothing to do.
        kept = volume.root.is_dir() and volume.directory("")
        if not kept or not kept.is_dir() or not _due(kept / MARK):
            return 0

    def files() -> int:
        # Unless it is known what is in use, none goes.
        return Files.of(settings).sweep(kinds.inputs_in_use(settings))

    return sum(map(_tried, (files, *(records.sweep for records in kinds.stored(settings)))))


def _tried(part: Callable[[], int]) -> int:
    """Return how much a part has removed; 0 if the volume fails."""
    try:
        return part()
    except VolumeError as error:
        log.warning("%s: %s", FAILED, error)
        return 0


def _due(mark: Path) -> bool:
    """Return whether somebody should sweep, who then is the caller."""
    # A mark of the future is that of a clock that was wrong.
    if mark.exists() and abs(time.time() - mark.stat().st_mtime) < PERIOD_S:
        return False
    mark.touch()
    return True


def _keep_sweeping(settings: Settings) -> None:
    while True:
        try:
            if removed := sweep(settings):
                log.info("%d files, batches and fine-tunes had expired and were removed", removed)
        except VolumeError as error:
            log.warning("%s: %s", FAILED, error)
        except Exception:
            # A defect: if the thread ended with it, the volume would fill.
            log.exception(FAILED)
        time.sleep(PERIOD_S)
