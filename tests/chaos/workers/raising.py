"""The worker, with cores that raise an exception in the middle of whatever they do at SIGUSR1."""

import signal
from types import FrameType

import handler


def fail(_: int, __: FrameType | None) -> None:
    raise RuntimeError("injected")


# The first core inherits it by a fork; others import this module once more.
signal.signal(signal.SIGUSR1, fail)

if __name__ == "__main__":
    handler.main()
