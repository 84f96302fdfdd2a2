"""The examples of docs/reference, docs/llm-engine.md and docs/guide.md: jobs, scripts, results.

The first line of a block has a role after the language: ``json job``, ``json output`` (one yield
of the preceding job), ``json error`` (the error of a failed job), ``sse output`` (the events of all
yields), ``sse end`` (the end of a stream that breaks off). A job's role is followed by its
settings,
and by ``endpoint`` if it needs a worker with all features.

The role of a script is its target: ``python endpoint``, ``sh endpoint``, ``python serve``.
``text output`` is the script's output.
"""

import json
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from support import ROOT

GUIDE = ROOT / "docs" / "guide.md"
REFERENCE = [*sorted((ROOT / "docs" / "reference").glob("*.md")), ROOT / "docs" / "llm-engine.md"]
BLOCK = re.compile(r"^```(json|sse|python|sh|text) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPTS = ("python", "sh")
# Matches values that differ between calls, and omitted values.
ANY = "…"
ENDPOINT = "endpoint"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language and role, the other words of its first line, and its text."""

    kind: str
    words: tuple[str, ...]
    text: str
    place: str


@dataclass(frozen=True)
class Example:
    """A job or a script, and the block with its result, if there is one."""

    job: Block
    answer: Block | None

    @property
    def name(self) -> str:
        return self.job.place

    @property
    def payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = json.loads(self.job.text)
        return payload

    @property
    def settings(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.job.words if "=" in word)

    def check(self, yields: list[Any]) -> None:
        """Assert that the yields of a worker match the result in the documentation."""
        # Encoded as by the SDK, without enumerations.
        yields = json.loads(json.dumps(yields))
        failed = isinstance(yields[-1], dict) and yields[-1].keys() == {"error"}
        kind = self.answer.kind if self.answer else None
        assert failed == (kind == "json error"), yields
        if self.answer is None:
            return
        expected: Any
        if failed:
            (expected,), actual = _values(self.answer.text), json.loads(yields[-1]["error"])
        elif kind == "sse output":
            expected, actual = events(self.answer.text), events("".join(yields))
        else:
            expected, actual = [*_values(self.answer.text)], yields
        assert matches(expected, actual), json.dumps(actual, ensure_ascii=False)[:2000]


def blocks(page: Path) -> list[Block]:
    """Return a page's blocks of JSON, events, scripts and their output."""
    found = []
    document = page.read_text()
    for match in BLOCK.finditer(document):
        language, attributes, text = match.groups()
        role, *words = shlex.split(attributes) or [""]
        line = document.count("\n", 0, match.start()) + 1
        found.append(Block(f"{language} {role}".strip(), tuple(words), text, f"{page.name}:{line}"))
    return found


def examples(*, endpoint: bool) -> list[Example]:
    """Return the jobs that need an endpoint with all features, or those that don't."""
    return [
        example
        for page in (*REFERENCE, GUIDE)
        for example in _examples(page)
        if example.job.kind == "json job" and (ENDPOINT in example.job.words) == endpoint
    ]


def scripts(target: str) -> list[Example]:
    """Return the guide's scripts for an endpoint, or for another kind of worker."""
    kinds = {f"{language} {target}" for language in SCRIPTS}
    return [example for example in _examples(GUIDE) if example.job.kind in kinds]


def reference() -> str:
    """Return the text of all pages of the reference."""
    return "\n".join(page.read_text() for page in REFERENCE)


def table_cells(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading of the reference, without backticks."""
    section = re.split(r"\n#+ ", reference().split(f"# {heading}\n")[1])[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines[1:]]


def events(text: str) -> list[Any]:
    """Return the events of a stream: the lines before the data, and the data."""
    whole = [event.splitlines() for event in text.strip().split("\n\n")]
    return [[*lines[:-1], _data(lines[-1].removeprefix("data: "))] for lines in whole]


def matches_text(expected: str, actual: str) -> bool:
    """Return whether a text matches an expected one, in which ``ANY`` matches everything."""
    return bool(re.fullmatch(".*".join(map(re.escape, expected.split(ANY))), actual, re.DOTALL))


def matches(expected: Any, actual: Any) -> bool:
    """Return whether a value matches an expected one, in which ``ANY`` matches everything."""
    if expected == ANY:
        return True
    if type(expected) is not type(actual):
        return False
    if isinstance(expected, dict):
        return _matching_keys(expected, actual)
    if isinstance(expected, list):
        if ANY in expected[-1:]:
            expected, actual = expected[:-1], actual[: len(expected) - 1]
        return len(expected) == len(actual) and all(map(matches, expected, actual))
    if isinstance(expected, str):
        return matches_text(expected, actual)
    # Numbers computed by an embedder or a model differ slightly between machines.
    return (
        bool(math.isclose(expected, actual, abs_tol=1e-3))
        if type(expected) is float
        else expected == actual
    )


def _examples(page: Path) -> list[Example]:
    several = blocks(page)
    return [
        Example(job, after if after and after.kind.endswith((" output", " error")) else None)
        for job, after in pairwise([*several, None])
        if job
    ]


def _matching_keys(expected: dict[str, Any], actual: dict[str, Any]) -> bool:
    named = expected.keys() - {ANY}
    all_there = named <= actual.keys() if ANY in expected else named == actual.keys()
    return all_there and all(matches(expected[key], actual[key]) for key in named)


def _data(text: str) -> Any:
    return text if text in ("[DONE]", ANY) else json.loads(text)


def _values(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text, which are separated by whitespace."""
    decoder, place = json.JSONDecoder(), 0
    while rest := text[place:].lstrip():
        value, length = decoder.raw_decode(rest)
        place = len(text) - len(rest) + length
        yield value
