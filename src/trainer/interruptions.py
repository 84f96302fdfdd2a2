"""What ends a training from outside: SIGTERM."""

import os
import signal
import threading

from trainer.spec import Exit


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
