"""Regular expressions: the time of each grows at most in proportion to the text."""

import ast
import re
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from support.effort import cpu_seconds, loop_iterations

from worker.media import contents

SOURCE = Path(__file__).parents[3] / "src" / "worker"
METHODS = ("search", "match", "fullmatch", "sub", "findall", "finditer", "split")
# Files whose expressions read only the operator's settings and the lists of a hub. All other
# expressions may read text of callers.
TRUSTED_FILES = (
    "engine/options/",
    "engine/start/parsers",
    "engine/start/load",
    "settings/",
    "store/",
)

# This file has its expressions in a table; they match the beginnings of media files.
SIGNATURES_FILE = "media/contents.py"
# This file has its expressions in a table; they match messages of vLLM, cut to 2,000 characters.
MESSAGES_FILE = "engine/start/refusals.py"

# Lengths of the texts. The short text detects growth faster than quadratic in little time.
LENGTHS = (500, 8_000)
# Limit in loop iterations. For the longest text, linear time takes a quarter of it, and quadratic
# time several times as much.
MAX_ITERATIONS = 8_000_000
# Processor seconds, far less than ``MAX_ITERATIONS`` take. Only slower calls are measured in
# loop iterations.
QUICK_S = 0.04

# Fragments that, repeated, make an expression start again at every position.
HOSTILE = (
    *("a", "A", "0", " ", "\n", "-", "--", "/", ".", "_", "=", "a=", "a-", "--a", "--a-", "/a"),
    *("\x1b[", "(", "() ", "[", "{}", ": {", '"', "'", "\\", "//a@", "a b", "\n ", "0 ", ":", "0:"),
    *("a::=", "\na ::= ", "| a", "é", ' File "', " at 0x0", " (parameter=a, value=", "x, a=b"),
    "A 0 ",
)


@cache
def parse_sources() -> dict[str, ast.Module]:
    files = sorted(SOURCE.rglob("*.py"))
    return {str(file.relative_to(SOURCE)): ast.parse(file.read_text()) for file in files}


def find_calls() -> Iterator[tuple[str, ast.Call, str]]:
    """Yield the file, the node and the name of the function for every call of the module re."""
    for file, tree in parse_sources().items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re" | "regex"), attr=name)):
                    if name in (*METHODS, "compile"):
                        yield file, node, name


@cache
def find_methods() -> dict[str, set[str]]:
    """Return the methods that are called on each compiled expression, by the expression's name."""
    methods: dict[str, set[str]] = {}
    for tree in parse_sources().values():
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=method) if method in METHODS:
                    methods.setdefault(name, set()).add(method)
    return methods


def find_expressions() -> Iterator[Any]:
    """Yield each expression with each method that is called on it."""
    names = {
        id(node.value): node.targets[0].id
        for tree in parse_sources().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for file, call, function in find_calls():
        if file.startswith(TRUSTED_FILES) or not isinstance(call.args[0], ast.Constant):
            continue
        compiled = to_text_pattern(re.compile(ast.literal_eval(call.args[0]), read_flags(call)))
        methods = {function} if function != "compile" else find_methods()[names[id(call)]]
        for method in sorted(methods):
            yield pytest.param(compiled, method, id=f"{file}:{call.lineno}-{method}")
    for kind, beginnings in contents.SIGNATURES.items():
        for beginning, type_ in beginnings:
            yield pytest.param(
                to_text_pattern(beginning), "match", id=f"{SIGNATURES_FILE}:{kind}-{type_}"
            )


def to_text_pattern(pattern: re.Pattern[Any]) -> re.Pattern[str]:
    """Return the expression for text that is equivalent to an expression for bytes."""
    if isinstance(pattern.pattern, str):
        return pattern
    return re.compile(pattern.pattern.decode("latin-1"), pattern.flags | re.ASCII)


def read_flags(call: ast.Call) -> int:
    """Return the combined flags in the arguments of a call."""
    arguments = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
    nodes = [node for argument in arguments for node in ast.walk(argument)]
    names = [node.attr for node in nodes if isinstance(node, ast.Attribute) and node.attr.isupper()]
    return sum(re.RegexFlag[name] for name in names)


def consume(apply: Callable[..., Any], text: str) -> None:
    """Apply an expression to the whole text."""
    result = apply(text)
    if isinstance(result, Iterator):
        deque(result, maxlen=0)


def find_slow_input(pattern: re.Pattern[str], method: str) -> str | None:
    """Describe a text for which an expression takes too long; return None if all are fast."""
    function: Callable[..., Any] = getattr(pattern, method)
    apply = partial(function, "") if method == "sub" else function
    literals = re.findall(r"[\w ,=]+|\W", pattern.pattern.replace("\\", ""))
    for fragment in sorted({*HOSTILE, *literals}):
        for beginning in ("", *literals[:3]):
            for length in LENGTHS:
                text = f"{beginning}{(fragment * length)[:length]}\0"
                call_once = partial(consume, apply, text)
                if cpu_seconds(call_once) > QUICK_S and loop_iterations(call_once) > MAX_ITERATIONS:
                    return f"{length} characters of {fragment!r} after {beginning!r}"
    return None


EXPRESSIONS = [*find_expressions()]


def test_every_expression_is_tested() -> None:
    files = {file for file, call, _ in find_calls() if not isinstance(call.args[0], ast.Constant)}
    untrusted_files = {file for file in files if not file.startswith(TRUSTED_FILES)}
    assert untrusted_files <= {SIGNATURES_FILE, MESSAGES_FILE}
    assert len(EXPRESSIONS) > 10
    for file, tree in parse_sources().items():
        for node in ast.walk(tree):
            match node:
                # ``find_calls`` would miss the module under another name.
                case ast.ImportFrom(module="re" | "regex"):
                    pytest.fail(file)
                case ast.alias(name="re" | "regex", asname=str()):
                    pytest.fail(file)


@pytest.mark.parametrize(("pattern", "method"), EXPRESSIONS)
def test_time_grows_no_faster_than_the_text(pattern: re.Pattern[str], method: str) -> None:
    assert find_slow_input(pattern, method) is None


def test_a_slow_expression_is_detected() -> None:
    assert find_slow_input(re.compile(r"(?:/[\w-]+)+/[\w-]+\.\w+"), "sub")
