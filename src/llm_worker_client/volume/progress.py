"""How far a transfer is: counted, and drawn as a bar. Here a transfer that is given up ends."""

from tqdm import tqdm

from llm_worker_client.volume.errors import Stopped
from llm_worker_client.volume.s3 import STOP


class Progress(tqdm):  # type: ignore[misc] # tqdm ships no types
    """Counts bytes from several threads; if it is visible, a terminal gets a bar.

    Attributes:
        moved: bytes that were on their way, those of failed tries too.
        found: bytes that were there already.
    """

    def __init__(self, total: int, title: str, *, visible: bool) -> None:
        units = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}
        # None: only on a terminal.
        super().__init__(total=total, desc=title, disable=None if visible else True, **units)
        self.moved = 0
        self.found = 0

    def move(self, bytes_transferred: int) -> None:
        """Count bytes that are on their way; less than 0: bytes that have to go again."""
        with self.get_lock():
            self.moved += max(bytes_transferred, 0)
            self.update(bytes_transferred)
        # Where s3transfer takes bytes back, botocore would hide the reason.
        if bytes_transferred > 0:
            _check()

    def find(self, size: int) -> None:
        """Count bytes that were there already."""
        with self.get_lock():
            self.found += size
            self.update(size)
        _check()


def _check() -> None:
    if STOP.get().is_set():
        raise Stopped("The transfer was stopped.")
