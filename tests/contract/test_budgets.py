"""Budgets of the code that no linter counts."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

from support import ROOT

SOURCES = {
    str(path.relative_to(ROOT)): path.read_text()
    for folder in ("src", "builder", "benchmarks", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
# Tables of data: they grow by a row at a time, and are not read from top to bottom.
TABLES = ("builder/table/", "tests/support/tables/", "src/worker/limits/table.py")


def lines_of(source: str) -> int:
    """Count a module's lines, without its imports: moving a name must not cost a line here."""
    imports = [
        node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return len(source.splitlines()) - sum(
        (node.end_lineno or node.lineno) - node.lineno + 1 for node in imports
    )


def test_a_module_has_at_most_300_lines() -> None:
    lines = {name: lines_of(source) for name, source in SOURCES.items()}
    long = {name: count for name, count in lines.items() if count > 300}
    assert [name for name in long if not name.startswith(TABLES)] == []


# They catch defects, whose traceback no caller may see; any failure of a dead engine; and what
# vLLM raises for a failed call of its core, which is a plain Exception.
BROAD_EXCEPTS = {
    "src/worker/engine/run/adapters/__init__.py": 1,
    "src/worker/engine/seam/translation.py": 1,
    "src/worker/errors.py": 1,
    "src/worker/sweep.py": 1,
}


def test_the_worker_has_few_broad_excepts() -> None:
    broad = re.compile(r"^\s*except( Exception| BaseException|:)", re.MULTILINE)
    found = {
        name: len(broad.findall(source))
        for name, source in SOURCES.items()
        if name.startswith("src/worker/")
    }
    assert {name: count for name, count in found.items() if count} == BROAD_EXCEPTS


def test_every_suppressed_rule_has_its_reason_on_its_line() -> None:
    bare = re.compile(r"#\s*(noqa|type: ignore)(:\s?[A-Z0-9, ]+|\[[\w, -]+\])?\s*$", re.MULTILINE)
    assert [name for name, source in SOURCES.items() if bare.search(source)] == []


YIELDED = re.compile(r"(?:Async)?(?:Iterator|Generator)\[(.+?)(?:, None){0,2}\]")


def test_a_fixtures_name_stands_for_one_type_in_all_tests() -> None:
    types: dict[str, set[str]] = defaultdict(set)
    for name, source in SOURCES.items():
        for node in ast.walk(ast.parse(source)) if name.startswith("tests/") else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                "fixture" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                returned = ast.unparse(node.returns) if node.returns else ""
                yielded = YIELDED.fullmatch(returned.strip("'"))
                types[node.name].add(yielded[1] if yielded else returned)
    assert {name: found for name, found in types.items() if len(found) > 1} == {}


def test_a_folder_has_at_most_15_modules() -> None:
    folders = Counter(str(Path(name).parent) for name in SOURCES)
    assert {folder: count for folder, count in folders.items() if count > 15} == {}
