"""The progress of a download, which is logged as lines and stored in the lease."""

import logging
import time
from collections.abc import Callable

from tqdm import tqdm

from worker import metrics

log = logging.getLogger(__name__)


def format_size(count: float) -> str:
    """Format a number of bytes in powers of ten, as the hub's pages do: 1.50MB."""
    return str(tqdm.format_sizeof(count, "B"))


class ProgressMeter:
    """Logs the number of bytes on the disk, including those that other workers have downloaded."""

    INTERVAL_S = 5.0

    def __init__(self, name: str) -> None:
        self._name = name
        self._total = 0
        self._done: Callable[[], int] = int

    def stored_and_total_bytes(self) -> tuple[int, int]:
        """Return the number of bytes on the disk, and the total number."""
        return self._done(), self._total

    def begin(self, total: int, done: Callable[[], int]) -> None:
        """Start measuring a download.

        Args:
            total: Number of bytes, including those that are already on the disk.
            done: Returns the number of bytes on the disk.
        """
        self._total, self._done, self._before = total, done, done()
        self._begun = self._logged_at = time.monotonic()

    def log_progress(self) -> None:
        """Log the progress, at most once per interval."""
        if time.monotonic() - self._logged_at >= self.INTERVAL_S:
            self._logged_at = time.monotonic()
            log.info("%s: %s", self._name, self._progress_text())

    def log_duration(self) -> None:
        """Log the duration and the rate of the download, and add it to the metrics."""
        if self._total > self._before:
            elapsed = time.monotonic() - self._begun
            size = self._total - self._before
            rate = format_size(size / elapsed)
            text = "%s: %s downloaded in %.1f s, %s/s"
            log.info(text, self._name, format_size(size), elapsed, rate)
            metrics.DOWNLOADED_BYTES.inc(size)
            metrics.DOWNLOAD_SECONDS.inc(elapsed)

    def _progress_text(self) -> str:
        done, total = self.stored_and_total_bytes()
        rate = (done - self._before) / (time.monotonic() - self._begun)
        left = f"{tqdm.format_interval((total - done) / rate)} left" if rate else "nothing comes"
        part = 100 * done / total if total else 100
        sizes = f"{format_size(done)} of {format_size(total)}"
        return f"{sizes} ({part:.0f} %), {format_size(rate)}/s, {left}"
