"""Inspection of a model's class by vLLM, in a fork of this process.

vLLM inspects the class in another process, since importing the class may initialize CUDA. It starts
a new interpreter, which imports vLLM again: most of the time of a first startup. A fork has already
imported vLLM.
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
def inspect_in_forks() -> Iterator[None]:
    """Make vLLM inspect models in forks during this block; needs a single-threaded process."""
    registry = resolve_name(INSPECT.owner)
    original = getattr(registry, INSPECT.name)
    with INSPECT.replace_temporarily(registry, lambda inspect: call_in_fork(inspect, original)):
        yield


def call_in_fork(function: Callable[[], Any], fallback: Callable[[Callable[[], Any]], Any]) -> Any:
    """Call a function in a fork and return its result, which must be serializable with pickle.

    If the fork fails, return the result of ``fallback``, which is called with the function.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def send_result() -> None:
        # Discard errors of the fork: the fallback prints its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        sender.send(function())

    process = children.run_in_fork(send_result)
    # The fork has the only other copy of the sender, so the pipe ends when the fork exits.
    sender.close()
    with receiver:
        try:
            return receiver.recv()
        except EOFError:
            # vLLM's own implementation reports the error.
            return fallback(function)
        finally:
            os.waitpid(process, 0)
