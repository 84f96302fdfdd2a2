"""What ends a training before its time: a failure, a volume that fails, SIGTERM."""

import errno
import os
import re
import signal
import threading

from trainer.spec import Exit

# Of the volume, not of the training: it may go on later.
_VOLUME = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}
# The messages of safetensors ("(os error 28)") and of torch, whose errors have no errno.
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_TORCH_WRITES = re.compile(r"PytorchStreamWriter failed|unexpected pos \d+ vs")


class Failure(Exception):
    """There will be no adapter, however often it is tried; the message says what to change."""


class VolumeFailure(Exception):
    """The volume fails, as the message says; another attempt may go on later."""


class Stopped(Exception):
    """Asked by SIGTERM; what another attempt goes on from is on the volume."""


def volume_failure(error: BaseException) -> str | None:
    """Return what the volume has failed in, in one line; None if the error is another."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, VolumeFailure):
            return str(cause)
        if isinstance(cause, OSError) and cause.errno in _VOLUME:
            return f"the volume fails: {cause.strerror}"
        text = str(cause)
        if (match := _OS_ERROR.search(text)) and int(match[1]) in _VOLUME:
            return f"the volume fails: {text.splitlines()[0]}"
        if _TORCH_WRITES.search(text):
            return "the volume fails: a checkpoint can't be written, it may be full"
        cause = cause.__cause__ or cause.__context__
    return None


class Interruptions:
    """Waits for SIGTERM in a thread, so that nothing that the main thread does delays an end.

    SIGTERM ends the process at once, until the training's steps begin; from then on it sets
    ``asked``, and a second one ends the process at once.
    """

    def __init__(self) -> None:
        self.asked = False
        self._patient = False

    def watch(self) -> None:
        """Begin; call it in the main thread, before anything that takes long."""
        # Python's own handlers run between two instructions of the main thread; the number of the
        # signal is in the pipe at once.
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)
        signal.signal(signal.SIGTERM, lambda *_: None)
        threading.Thread(
            target=self._await_signals, args=[reading], name="signals", daemon=True
        ).start()

    def be_patient(self) -> None:
        """Let SIGTERM only set ``asked``: the caller looks at it after each step."""
        self._patient = True

    def _await_signals(self, reading: int) -> None:
        while True:
            if os.read(reading, 1)[0] != signal.SIGTERM:
                continue
            if self.asked or not self._patient:
                # What is on the volume is whole: there is nothing to clean up.
                os._exit(Exit.STOPPED)
            self.asked = True
