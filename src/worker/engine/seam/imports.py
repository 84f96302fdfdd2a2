"""Makes the import of transformers faster, which vLLM needs."""

import contextlib
import functools
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from worker.engine.seam.patches import IMPORT_STRUCTURE


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
