"""Counts the bytes of a transfer, draws a progress bar, and raises an error to stop it."""

from tqdm import tqdm

from llm_worker_client.terminal import make_printable
from llm_worker_client.volume.errors import TransferStopped
from llm_worker_client.volume.s3 import STOP_EVENT


class Progress(tqdm):  # type: ignore[misc] # tqdm ships no types
    """Counts bytes from several threads, and draws a bar on a terminal if ``visible`` is set.

    Attributes:
        transferred: Bytes sent or received, including failed tries.
        existing: Bytes that did not have to be transferred.
    """

    def __init__(self, total: int, title: str, *, visible: bool) -> None:
        units = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}
        # None disables the bar unless the output is a terminal.
        super().__init__(
            total=total, desc=make_printable(title), disable=None if visible else True, **units
        )
        self.transferred = 0
        self.existing = 0

    def add_transferred_bytes(self, bytes_transferred: int) -> None:
        """Count transferred bytes; a negative number moves the bar back before they are sent again.

        Raises:
            TransferStopped: If the caller has stopped the transfer and the number is positive.
        """
        with self.get_lock():
            self.transferred += max(bytes_transferred, 0)
            self.update(bytes_transferred)
        # Don't raise while s3transfer moves the bar back, as botocore would hide this exception.
        if bytes_transferred > 0:
            _raise_if_stopped()

    def add_existing_bytes(self, size: int) -> None:
        """Count bytes that need no transfer; raise ``TransferStopped`` if the caller stopped it."""
        with self.get_lock():
            self.existing += size
            self.update(size)
        _raise_if_stopped()


def _raise_if_stopped() -> None:
    if STOP_EVENT.get().is_set():
        raise TransferStopped("The transfer was stopped.")
