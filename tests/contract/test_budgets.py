"""Budgets of the code that no linter counts."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    path
    for folder in ("src", "builder", "benchmarks", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_has_at_most_300_lines(module: Path) -> None:
    assert len(module.read_text().splitlines()) <= 300


def test_the_worker_has_one_broad_except() -> None:
    broad = re.compile(r"^\s*except( Exception| BaseException|:)", re.MULTILINE)
    sources = {path: path.read_text() for path in (ROOT / "src" / "worker").rglob("*.py")}
    found = {path.name: len(broad.findall(source)) for path, source in sources.items()}
    assert {name: count for name, count in found.items() if count} == {"app.py": 1}


def test_every_suppressed_rule_has_its_reason_beside_it() -> None:
    bare = re.compile(r"#\s*(noqa|type: ignore)(:\s?[A-Z0-9, ]+|\[[\w, -]+\])?\s*$", re.MULTILINE)
    unexplained = [path for path in MODULES if bare.search(path.read_text())]
    assert unexplained == []
