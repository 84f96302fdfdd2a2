"""Rules of the code that no linter checks (CONTRIBUTING.md: Style)."""

import ast
import re
from collections import Counter, defaultdict

from support import ROOT

SOURCES = {
    str(path.relative_to(ROOT)): path.read_text()
    for folder in ("src", "builder", "benchmarks", "examples", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
TREES = {
    name: ast.parse(source)
    for name, source in SOURCES.items()
    if name.startswith(("src/", "builder/", "tests/"))
}


def test_a_broad_except_of_the_worker_has_its_reason_beside_it() -> None:
    bare = re.compile(
        r"^(?! *#).*\n *except(?: (?:Base)?Exception)?(?: as \w+)?:\n(?! *#)", re.MULTILINE
    )
    worker = {name: text for name, text in SOURCES.items() if name.startswith("src/worker/")}
    assert [name for name, source in worker.items() if bare.search(source)] == []


def test_every_suppressed_rule_has_its_reason_on_its_line() -> None:
    bare = re.compile(r"#\s*(noqa|type: ignore)(:\s?[A-Z0-9, ]+|\[[\w, -]+\])?\s*$", re.MULTILINE)
    assert [name for name, source in SOURCES.items() if bare.search(source)] == []


YIELDED = re.compile(r"(?:Async)?(?:Iterator|Generator)\[(.+?)(?:, None){0,2}\]")


def test_a_fixtures_name_stands_for_one_type_in_all_tests() -> None:
    types: dict[str, set[str]] = defaultdict(set)
    for name, tree in TREES.items():
        # A fixture is a function of a module.
        for node in tree.body if name.startswith("tests/") else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                "fixture" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                returned = ast.unparse(node.returns) if node.returns else ""
                yielded = YIELDED.fullmatch(returned.strip("'"))
                types[node.name].add(yielded[1] if yielded else returned)
    assert {name: found for name, found in types.items() if len(found) > 1} == {}


# vLLM and LLM Engine each have a class of this name.
NAMED_ALIKE = {"llm_worker_client: CompletionOutput"}


def test_a_class_has_a_name_of_its_own_in_its_package() -> None:
    classes = Counter(
        f"{name.removeprefix('src/').split('/')[0]}: {node.name}"
        for name, tree in TREES.items()
        if name.startswith(("src/", "builder/", "tests/support/"))
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in classes.items() if count > 1} == NAMED_ALIKE
