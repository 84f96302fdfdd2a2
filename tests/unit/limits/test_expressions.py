"""Regular expressions: none takes longer than in proportion to the text, whoever wrote that."""

import ast
import re
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from support.effort import seconds, turns

from worker.limits import repetitions
from worker.media import containers

SOURCE = Path(__file__).parents[3] / "src" / "worker"
METHODS = ("search", "match", "fullmatch", "sub", "findall", "finditer", "split")
# What callers write is read elsewhere: here are the operator's settings, and what a hub lists.
OPERATORS = ("engine/options/", "engine/start/parsers", "engine/start/load", "settings/", "store/")

# Its expressions are put together from parts.
COMPOSED = "limits/repetitions.py"
# Its expressions stand in a table, and read the beginnings of files.
OF_FILES = "media/containers.py"
# Its expressions stand in a table, and read messages of vLLM that are cut to 2,000 characters.
OF_MESSAGES = "engine/start/refusals.py"

# The shorter one finds, soon enough, what grows faster than with the square.
LENGTHS = (500, 8_000)
# Turns of a loop: a time that grows with the length is a quarter of it for the longest, one that
# grows with its square several times as much.
MOST = 8_000_000
# Processor seconds, far less than these turns take: what takes longer is looked at again.
QUICK_S = 0.01

# Fragments that, repeated, make an expression try again from every place.
HOSTILE = (
    *("a", "A", "0", " ", "\n", "-", "--", "/", ".", "_", "=", "a=", "a-", "--a", "--a-", "/a"),
    *("\x1b[", "(", "() ", "[", "{}", ": {", '"', "'", "\\", "//a@", "a b", "\n ", "0 ", ":", "0:"),
    *("a::=", "\na ::= ", "| a", "é", ' File "', " at 0x0", " (parameter=a, value=", "x, a=b"),
    "A 0 ",
)


@cache
def trees() -> dict[str, ast.Module]:
    files = sorted(SOURCE.rglob("*.py"))
    return {str(file.relative_to(SOURCE)): ast.parse(file.read_text()) for file in files}


def calls() -> Iterator[tuple[str, ast.Call, str]]:
    """Yield every call of a function of the module re: its file, and the function's name."""
    for file, tree in trees().items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re" | "regex"), attr=name)):
                    if name in (*METHODS, "compile"):
                        yield file, node, name


@cache
def uses() -> dict[str, set[str]]:
    """Return the methods that are called of each compiled expression, by its name."""
    found: dict[str, set[str]] = {}
    for tree in trees().values():
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=method) if method in METHODS:
                    found.setdefault(name, set()).add(method)
    return found


def expressions() -> Iterator[Any]:
    """Yield each expression with a method that it is used with."""
    named = {
        id(node.value): node.targets[0].id
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for file, call, function in calls():
        if file.startswith(OPERATORS) or not isinstance(call.args[0], ast.Constant):
            continue
        compiled = as_text(re.compile(ast.literal_eval(call.args[0]), flags(call)))
        methods = {function} if function != "compile" else uses()[named[id(call)]]
        for method in sorted(methods):
            yield pytest.param(compiled, method, id=f"{file}:{call.lineno}-{method}")
    for name, compiled in vars(repetitions).items():
        if isinstance(compiled, re.Pattern):
            yield pytest.param(compiled, "finditer", id=f"{COMPOSED}:{name}")
    for kind, beginnings in containers.BEGINNINGS.items():
        for beginning, type_ in beginnings:
            yield pytest.param(as_text(beginning), "match", id=f"{OF_FILES}:{kind}-{type_}")


def as_text(pattern: re.Pattern[Any]) -> re.Pattern[str]:
    """Return an expression for texts that does what one for bytes does."""
    if isinstance(pattern.pattern, str):
        return pattern
    return re.compile(pattern.pattern.decode("latin-1"), pattern.flags | re.ASCII)


def flags(call: ast.Call) -> int:
    """Return the flags of a call: every argument that names some."""
    arguments = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
    nodes = [node for argument in arguments for node in ast.walk(argument)]
    names = [node.attr for node in nodes if isinstance(node, ast.Attribute) and node.attr.isupper()]
    return sum(re.RegexFlag[name] for name in names)


def read(apply: Callable[..., Any], text: str) -> None:
    """Apply an expression to the whole text."""
    found = apply(text)
    if isinstance(found, Iterator):
        deque(found, maxlen=0)


def slow(pattern: re.Pattern[str], method: str) -> str | None:
    """Return what makes an expression take too long; None if nothing does."""
    function: Callable[..., Any] = getattr(pattern, method)
    apply = partial(function, "") if method == "sub" else function
    literals = re.findall(r"[\w ,=]+|\W", pattern.pattern.replace("\\", ""))
    for fragment in sorted({*HOSTILE, *literals}):
        for begin in ("", *literals[:3]):
            for length in LENGTHS:
                text = f"{begin}{(fragment * length)[:length]}\0"
                reading = partial(read, apply, text)
                if seconds(reading) > QUICK_S and turns(reading) > MOST:
                    return f"{length} characters of {fragment!r} after {begin!r}"
    return None


def test_every_expression_is_timed() -> None:
    made = {file for file, call, _ in calls() if not isinstance(call.args[0], ast.Constant)}
    others = {file for file in made if not file.startswith(OPERATORS)}
    assert others <= {COMPOSED, OF_FILES, OF_MESSAGES}
    assert len(list(expressions())) > 10
    for file, tree in trees().items():
        for node in ast.walk(tree):
            match node:
                # Under another name it would be overlooked.
                case ast.ImportFrom(module="re" | "regex"):
                    pytest.fail(file)
                case ast.alias(name="re" | "regex", asname=str()):
                    pytest.fail(file)


@pytest.mark.parametrize(("pattern", "method"), list(expressions()))
def test_time_grows_no_faster_than_the_text(pattern: re.Pattern[str], method: str) -> None:
    assert slow(pattern, method) is None


def test_one_that_takes_longer_is_found() -> None:
    assert slow(re.compile(r"(?:/[\w-]+)+/[\w-]+\.\w+"), "sub")
