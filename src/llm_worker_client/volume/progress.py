"""How far a transfer is: counted, and shown as a bar."""

import threading
from types import TracebackType
from typing import Self

from tqdm import tqdm


class Progress:
    """Counts bytes from several threads.

    Args:
        total: bytes in all.
        title: shown before the bar.
        shown: whether a terminal gets a bar.

    Attributes:
        moved: bytes that were on their way, those of failed tries too.
        found: bytes that were there already.
    """

    def __init__(self, total: int, title: str, *, shown: bool) -> None:
        # None: only on a terminal.
        self._bar = tqdm(
            total=total,
            desc=title,
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            disable=None if shown else True,
        )
        self._lock = threading.Lock()
        self.moved = 0
        self.found = 0

    def move(self, size: int) -> None:
        """Count bytes that are on their way."""
        with self._lock:
            self.moved += size
            self._bar.update(size)

    def lose(self, size: int) -> None:
        """Take bytes back that have to go again."""
        with self._lock:
            self._bar.update(-size)

    def find(self, size: int) -> None:
        """Count bytes that were there already."""
        with self._lock:
            self.found += size
            self._bar.update(size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._bar.close()
