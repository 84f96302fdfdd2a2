"""What the client's package requires is what it imports."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support import ROOT

SOURCE = ROOT / "src" / "llm_worker_client"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Imported where it is installed: clients that need it bring it.
OPTIONAL = "httpx2"


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(one).name) for one in requirements}


def imported() -> Iterator[str]:
    """Yield the top of every module that the client imports."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.partition(".")[0]


def test_all_that_is_imported_is_required_and_nothing_else() -> None:
    foreign = set(imported()) - sys.stdlib_module_names - {"llm_worker_client", OPTIONAL}
    providers = packages_distributions()
    found = {canonicalize_name(providers[module][0]) for module in foreign}
    required = names(PROJECT["dependencies"])
    extras = {name for extra in PROJECT["optional-dependencies"].values() for name in names(extra)}
    assert required <= found <= required | extras
