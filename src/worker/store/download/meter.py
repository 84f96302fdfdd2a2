"""The progress of a download: logged as lines, and read by its lease."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

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

    @contextlib.contextmanager
    def of(self, total: int, done: Callable[[], int]) -> Iterator[None]:
        """Log the progress while the block runs; then, if it doesn't raise, the time it took.

        Args:
            total: bytes, including those that are on the disk already.
            done: returns the bytes that are on the disk.
        """
        self._total, self._done = total, done
        ended = threading.Event()
        begun, before = time.monotonic(), done()

        def watch() -> None:
            while not ended.wait(self.INTERVAL_S):
                log.info("%s: %s", self._name, _line(done(), total, before, begun))

        thread = threading.Thread(target=watch, name="meter", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if total > before:
            elapsed = time.monotonic() - begun
            came, rate = size(total - before), size((total - before) / elapsed)
            log.info("%s: %s downloaded in %.1f s, %s/s", self._name, came, elapsed, rate)


def _line(done: int, total: int, before: int, begun: float) -> str:
    rate = (done - before) / (time.monotonic() - begun)
    left = f"{tqdm.format_interval((total - done) / rate)} left" if rate else "nothing comes"
    part = 100 * done / total if total else 100
    return f"{size(done)} of {size(total)} ({part:.0f} %), {size(rate)}/s, {left}"
