"""Commands that end with this process, however it ends and whatever they do, importing too.

Run by its path, ``with_parent.py PARENT COMMAND...``, this asks the kernel for a SIGTERM when the
parent ends, and becomes the command. It imports nothing but the standard library, so that it takes
milliseconds.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

# Of prctl: the signal that the kernel sends when the parent has ended. An exec keeps it.
_PR_SET_PDEATHSIG = 1


def command(*words: str | Path) -> list[str]:
    """Return a command that ends with this process, in place of one with these words.

    For the kernel the parent is the thread that starts it: the command ends with that, too.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *map(str, words)]


def end_with(parent: int) -> None:
    """Let SIGTERM end this process, and the kernel send it when the parent has ended."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        # It has ended before the kernel knew.
        os._exit(1)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
