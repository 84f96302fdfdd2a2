"""What the processes of a core print: passed on, and the last error in it."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from multiprocessing import resource_tracker

from worker import logs
from worker.children import Child
from worker.logs.reader import ERRORS, LONGEST_SEARCHED

STREAMS = (1, 2)
# Seconds that a reader gets for what a core has printed at its end; it needs milliseconds of them,
# unless the machine is busy, or another process has inherited a pipe.
DRAIN_S = 5.0


class CoreOutput:
    """The output of one core: a child process passes it on and searches it."""

    def __init__(self) -> None:
        self._note = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._reader: Child | None = None

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Read what the processes print that begin in this block.

        What this process prints until the block ends goes the same way.
        """
        # It would inherit the pipes, and live longer than the core.
        resource_tracker.ensure_running()
        targets = [os.dup(stream) for stream in STREAMS]
        self._reader = logs.redirect(STREAMS, targets, ERRORS, self._note.fileno())
        try:
            yield
        finally:
            for stream, target in zip(STREAMS, targets, strict=True):
                os.dup2(target, stream)
                os.close(target)

    @property
    def last_error(self) -> str | None:
        """The last error that was printed, in one line; None if there was none."""
        # Read at its place: the reader shares the position.
        text = os.pread(self._note.fileno(), LONGEST_SEARCHED, 0).decode(errors="replace")
        return text.partition("\n")[0] or None

    def close(self) -> str | None:
        """End the reader of a core that has ended; return the last error."""
        if self._reader is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._reader.wait(DRAIN_S)
        self._reader.kill()
        self._reader.wait()
        self._reader = None
        error = self.last_error
        self._note.close()
        return error
