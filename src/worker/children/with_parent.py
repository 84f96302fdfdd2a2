"""Makes a process exit with its parent, also during imports, and after a SIGKILL of the parent.

As a script, ``with_parent.py SIGNAL PARENT COMMAND...``, this requests the signal from the kernel
for the exit of the parent, and then executes the command. It imports only the standard library, so
that it takes milliseconds.
"""

import ctypes
import os
import signal
import sys

# Option of ``prctl``: the signal that the kernel sends when the parent exits. An exec preserves it.
PR_SET_PDEATHSIG = 1


def exit_with_parent(parent: int, signal_number: int = signal.SIGKILL) -> None:
    """Make the kernel send a signal to this process when its parent exits.

    For the kernel, the parent is the thread that started this process. From now on, this process
    ignores SIGINT, and SIGTERM has its default action.
    """
    # Ctrl-C sends SIGINT to the whole process group, but the parent decides when its children stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Otherwise, a child of a parent that ignores SIGTERM would ignore it, too.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:
        # The parent exited before the call of ``prctl``.
        os._exit(1)


if __name__ == "__main__":
    exit_with_parent(int(sys.argv[2]), int(sys.argv[1]))
    os.execvp(sys.argv[3], sys.argv[3:])
