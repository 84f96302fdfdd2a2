"""The progress of a download: logged as lines, and read by its lease."""

import logging
import time
from collections.abc import Callable

from tqdm import tqdm

log = logging.getLogger(__name__)


def size(count: float) -> str:
    """Format a number of bytes in powers of ten, as the hub's pages do: 1.50MB."""
    return str(tqdm.format_sizeof(count, "B"))


class Meter:
    """Logs how many bytes are on the disk, whichever worker has downloaded them.

    Args:
        name: of what is downloaded, for the log.
    """

    INTERVAL_S = 5.0

    def __init__(self, name: str) -> None:
        self._name = name
        self._total = 0
        self._done: Callable[[], int] = int

    def read(self) -> tuple[int, int]:
        """Return the bytes on the disk, and those of the whole."""
        return self._done(), self._total

    def begin(self, total: int, done: Callable[[], int]) -> None:
        """Measure a download from now on.

        Args:
            total: bytes, including those that are on the disk already.
            done: returns the bytes that are on the disk.
        """
        self._total, self._done, self._before = total, done, done()
        self._begun = self._logged_at = time.monotonic()

    def tick(self) -> None:
        """Log the progress, unless that was done a moment ago."""
        if time.monotonic() - self._logged_at >= self.INTERVAL_S:
            self._logged_at = time.monotonic()
            log.info("%s: %s", self._name, self._line())

    def end(self) -> None:
        """Log the time that it took."""
        if self._total > self._before:
            elapsed = time.monotonic() - self._begun
            came = self._total - self._before
            rate = size(came / elapsed)
            log.info("%s: %s downloaded in %.1f s, %s/s", self._name, size(came), elapsed, rate)

    def _line(self) -> str:
        done, total = self.read()
        rate = (done - self._before) / (time.monotonic() - self._begun)
        left = f"{tqdm.format_interval((total - done) / rate)} left" if rate else "nothing comes"
        part = 100 * done / total if total else 100
        return f"{size(done)} of {size(total)} ({part:.0f} %), {size(rate)}/s, {left}"
