"""Ends a process with its parent, also while it imports, and after a SIGKILL of the parent.

Run by its path, ``with_parent.py SIGNAL PARENT COMMAND...``, this asks the kernel for the signal
when the parent ends, and becomes the command. It imports nothing but the standard library, so that
it takes milliseconds.
"""

import ctypes
import os
import signal
import sys

# Of prctl: the signal that the kernel sends when the parent has ended. An exec keeps it.
_PR_SET_PDEATHSIG = 1


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel end this process with a signal when its parent has ended.

    For the kernel the parent is the thread that has started this process.
    """
    # Ctrl-C reaches the whole process group: the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The parent may ignore it, or handle it in its own way.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        # It has ended before the kernel knew.
        os._exit(1)


if __name__ == "__main__":
    end_with(int(sys.argv[2]), int(sys.argv[1]))
    os.execvp(sys.argv[3], sys.argv[3:])
