"""Makes the imports of a start faster: those of transformers, and those of vLLM's inspections.

While transformers is imported, it parses the sources of its models, and its own cache is too small
for all of them.

vLLM inspects a model's class in another process, since importing the class may initialize CUDA. It
starts a new interpreter, which imports vLLM again: most of the time of a first startup. A fork of
this process has already imported vLLM.
"""

import contextlib
import functools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from worker import children
from worker.engine.seam.patches import IMPORT_STRUCTURE, INSPECT


@contextlib.contextmanager
def cache_import_structure() -> Iterator[None]:
    """Let transformers parse each of its sources once, if a block imports it for the first time."""
    finder = _StructureFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _StructureFinder(MetaPathFinder):
    """Finds the module that parses the sources of models."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != IMPORT_STRUCTURE.owner:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec and spec.loader:
            spec.loader = _StructureLoader(spec.loader)
        return spec


class _StructureLoader(Loader):
    """Gives the function that parses the sources a cache for all of them.

    The function is called while the package is imported, so it can't be replaced afterwards.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        function: Any = getattr(module, IMPORT_STRUCTURE.name, None)
        if hasattr(function, "cache_info"):
            IMPORT_STRUCTURE.replace(module, functools.cache(function.__wrapped__))


@contextlib.contextmanager
def inspect_in_forks() -> Iterator[None]:
    """Make vLLM inspect models in forks during this block; needs a single-threaded process."""
    registry = resolve_name(INSPECT.owner)
    original = getattr(registry, INSPECT.name)
    with INSPECT.replace_temporarily(registry, lambda inspect: call_in_fork(inspect, original)):
        yield


def call_in_fork(function: Callable[[], Any], fallback: Callable[[Callable[[], Any]], Any]) -> Any:
    """Return the picklable result of a call in a fork; if the fork fails, that of ``fallback``."""
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
