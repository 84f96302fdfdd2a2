"""docs/troubleshooting.md quotes the worker's messages as they are."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from support import ROOT

from worker.store import Reason, Wanted, unavailable

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
# Stands for what differs: in the page, and here for what code fills in.
ANY = "…"
FIELD = re.compile(r"%[-+.\d]*[srdf]|\{\w*\}")
# First cells of tables have the messages, each in marks of code; names alone have no space.
QUOTED = [
    message
    for cell in re.findall(r"^\| (.+?) \|", PAGE, re.MULTILINE)
    for message in re.findall(r"`([^`]*)`", cell)
    if " " in message
]


def texts() -> Iterator[str]:
    """Yield the texts in the worker's code but docstrings, with ``ANY`` for what is filled in."""
    for file in [ROOT / "src" / "handler.py", *sorted((ROOT / "src" / "worker").rglob("*.py"))]:
        nodes = [*ast.walk(ast.parse(file.read_text()))]
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else ANY
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and id(node) not in docstrings:
                yield FIELD.sub(ANY, str(node.value))


@cache
def all_texts() -> str:
    # One a line, so that no message is put together of two.
    return "\n".join(text.replace("\n", " ") for text in texts())


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_stands_in_the_code(message: str) -> None:
    pattern = ".*?".join(re.escape(part) for part in message.split(ANY))
    assert re.search(pattern, all_texts()), message


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_why_a_model_is_unavailable_has_its_row(reason: Reason) -> None:
    problem = unavailable(Wanted("org/name"), reason).problem.removeprefix("org/name: ")
    assert f"| `{problem}` |" in PAGE


def test_the_page_has_messages_of_all_parts_of_the_worker() -> None:
    assert len(set(QUOTED)) > 40
