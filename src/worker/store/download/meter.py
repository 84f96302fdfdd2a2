"""How far a download has come, as lines that a log can show and as what its lease says."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from tqdm import tqdm

log = logging.getLogger(__name__)


def size(count: float) -> str:
    """Write a number of bytes, in powers of ten as the hub does."""
    return str(tqdm.format_sizeof(count, "B"))


class Meter:
    """Counts the bytes that are there, whoever has brought them.

    Args:
        name: of what is downloaded.
    """

    INTERVAL_S = 5.0

    def __init__(self, name: str) -> None:
        self._name = name
        self._total = 0
        self._done: Callable[[], int] = int

    def read(self) -> tuple[int, int]:
        """Return the bytes that are there, and those that there will be."""
        return self._done(), self._total

    @contextlib.contextmanager
    def of(self, total: int, done: Callable[[], int]) -> Iterator[None]:
        """Log how far it has come, until the block ends; then, what it took.

        Args:
            total: bytes, with those that are there already.
            done: returns the bytes that are there.
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
            told = size(total - before), elapsed, size((total - before) / elapsed)
            log.info("%s: %s downloaded in %.1f s, %s/s", self._name, *told)


def _line(done: int, total: int, before: int, begun: float) -> str:
    rate = (done - before) / (time.monotonic() - begun)
    left = f"{tqdm.format_interval((total - done) / rate)} left" if rate else "nothing comes"
    part = 100 * done / total if total else 100
    return f"{size(done)} of {size(total)} ({part:.0f} %), {size(rate)}/s, {left}"
