"""What ends a training from outside: SIGTERM, and the end of the process that has started it."""

import os
import signal
import stat
import threading

from worker.trainer.spec import Exit

_STDIN = 0


class Interruptions:
    """Waits for both in threads, so that nothing that the main thread does delays an end.

    SIGTERM ends the process at once, until the training's steps begin; from then on it sets
    ``asked``, and a second one ends the process at once. Standard input, where it is a pipe, ends
    the process at once when the other end is closed.
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
        mode = os.fstat(_STDIN).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            threading.Thread(target=_await_end, name="parent", daemon=True).start()

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


def _await_end() -> None:
    while os.read(_STDIN, 4096):
        pass
    os._exit(Exit.STOPPED)
