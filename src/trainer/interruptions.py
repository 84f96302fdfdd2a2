"""Reasons to end a training early: failures, a failing volume, SIGTERM."""

import errno
import os
import re
import signal
import threading

from worker.fine_tunes.spec import ExitStatus

# Errors of the volume rather than the training: another attempt may succeed later.
_VOLUME_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}
# Messages of safetensors ("(os error 28)") and torch, whose exceptions have no errno.
_OS_ERROR_PATTERN = re.compile(r"\(os error (\d+)\)")
_TORCH_ERROR_PATTERN = re.compile(r"PytorchStreamWriter failed|unexpected pos \d+ vs")


class TrainingFailure(Exception):
    """The training can't succeed, however often it is retried; the message gives the reason."""


class VolumeFailure(Exception):
    """The volume fails, as the message says; another attempt may succeed later."""


class StoppedBySigterm(Exception):
    """SIGTERM stopped the training, which can be resumed, at a checkpoint or in an evaluation."""


def describe_volume_failure(error: BaseException) -> str | None:
    """Describe in one line the volume's failure that caused an error; None for other errors.

    The exceptions that led to the error are searched, too.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, VolumeFailure):
            return str(cause)
        if isinstance(cause, OSError) and cause.errno in _VOLUME_ERRNOS:
            return f"the volume fails: {cause.strerror}"
        text = str(cause)
        if (match := _OS_ERROR_PATTERN.search(text)) and int(match[1]) in _VOLUME_ERRNOS:
            return f"the volume fails: {text.splitlines()[0]}"
        if _TORCH_ERROR_PATTERN.search(text):
            return "the volume fails: a checkpoint can't be written, it may be full"
        cause = cause.__cause__ or cause.__context__
    return None


class SigtermWatcher:
    """Waits for SIGTERM in a thread, so that work in the main thread doesn't delay the exit.

    Until ``defer_exit`` is called, SIGTERM exits the process immediately. From then on it sets
    ``is_stop_requested``, and a second SIGTERM exits immediately.
    """

    def __init__(self) -> None:
        self.is_stop_requested = False
        self._defers_exit = False

    def watch(self) -> None:
        """Start watching. Must be called in the main thread, before any long operation."""
        # A long call of C code in the main thread delays Python's signal handlers. The wakeup pipe
        # receives the signal's number immediately.
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end)
        signal.signal(signal.SIGTERM, lambda *_: None)
        threading.Thread(
            target=self._await_signals, args=[read_end], name="signals", daemon=True
        ).start()

    def defer_exit(self) -> None:
        """Let the first SIGTERM only set ``is_stop_requested``, which the caller must check."""
        self._defers_exit = True

    def _await_signals(self, read_end: int) -> None:
        while True:
            if os.read(read_end, 1)[0] != signal.SIGTERM:
                continue
            if self.is_stop_requested or not self._defers_exit:
                # No cleanup is needed: readers ignore the hidden names of incomplete files.
                os._exit(ExitStatus.STOPPED)
            self.is_stop_requested = True
