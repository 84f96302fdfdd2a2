"""Makes the import of transformers faster, which vLLM needs."""

import contextlib
import functools
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
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
    """Finds the module that parses the sources, and gives its function a larger cache.

    The function is called while the package is imported, so it can't be replaced afterwards.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != IMPORT_STRUCTURE.owner:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_and_replace(module: ModuleType) -> None:
                execute(module)
                function: Any = getattr(module, IMPORT_STRUCTURE.name, None)
                if hasattr(function, "cache_info"):
                    IMPORT_STRUCTURE.replace(module, functools.cache(function.__wrapped__))

            spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]  # only here
        return spec
