"""A worker whose cores raise an exception, wherever they are, on SIGUSR1."""

import signal
from types import FrameType

import handler


def raise_error(_: int, __: FrameType | None) -> None:
    raise RuntimeError("injected")


# The first core inherits this handler by a fork; other cores import this module.
signal.signal(signal.SIGUSR1, raise_error)

if __name__ == "__main__":
    handler.main()
