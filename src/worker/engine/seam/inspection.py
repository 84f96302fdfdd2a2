"""vLLM's look at the class of a model, taken in a fork of this process.

vLLM looks in another process, since importing the class may initialise CUDA, and starts a new
interpreter for it, which imports vLLM once more: most of a first start. A fork has it already.
"""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from typing import Any

from worker import children
from worker.engine.seam.patches import INSPECT


@contextlib.contextmanager
def by_forks() -> Iterator[None]:
    """Let vLLM look in forks during this block, while this process has one thread."""
    registry = resolve_name(INSPECT.owner)
    own = getattr(registry, INSPECT.name)
    with INSPECT.replaced(registry, lambda look: forked(look, own)):
        yield


def forked(look: Callable[[], Any], otherwise: Callable[[Callable[[], Any]], Any]) -> Any:
    """Return what a function returns in a fork; if it fails there, call it otherwise."""
    answers, answer = multiprocessing.Pipe(duplex=False)

    def send() -> None:
        # What goes wrong is printed by the next attempt.
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a device of the kernel
            os.dup2(nowhere.fileno(), sys.stderr.fileno())
        answer.send(look())

    process = children.fork(send)
    # The only other one is the fork's: its end is the end of the pipe.
    answer.close()
    with answers:
        try:
            return answers.recv()
        except EOFError:
            # vLLM's own way says why.
            return otherwise(look)
        finally:
            os.waitpid(process, 0)
