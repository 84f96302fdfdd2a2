"""A worker without trials of grammars, whose cores raise an exception on SIGUSR1."""

import signal
from types import FrameType

import handler
from worker.engine.run import inprocess


def raise_error(_: int, __: FrameType | None) -> None:
    raise RuntimeError("injected")


# The first core inherits this handler by a fork; other cores import this module.
signal.signal(signal.SIGUSR1, raise_error)

# A grammar can keep the core busy only if it reaches the core.
vars(inprocess)["create_grammar_tester"] = lambda _: None

if __name__ == "__main__":
    handler.main()
