"""The examples of docs/api.md: jobs, and what they are answered with.

A block's first line says what it is, behind its language: ``json job``, ``json output`` (each yield
of the job above it), ``json error`` (what its failure holds), ``sse output`` (the events of all
yields), ``sse end`` (how a stream breaks off). A job's settings stand behind it, and ``endpoint``
where it needs what only a worker with all features has.
"""

import json
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from support import ROOT

DOCUMENT = (ROOT / "docs" / "api.md").read_text()
BLOCK = re.compile(r"^```(json|sse) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Stands for what differs from call to call, and for what is left out.
ANY = "…"
ENDPOINT = "endpoint"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language and role, what else its first line says, and its text."""

    kind: str
    words: tuple[str, ...]
    text: str
    line: int


@dataclass(frozen=True)
class Example:
    """A job, and the block that shows its answer, if there is one."""

    job: Block
    answer: Block | None

    @property
    def name(self) -> str:
        return f"line {self.job.line}"

    @property
    def payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = json.loads(self.job.text)
        return payload

    @property
    def settings(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.job.words if "=" in word)

    def check(self, yields: list[Any]) -> None:
        """Hold what a worker yields for the job to what is shown."""
        # As the SDK will send it: some integers have names here.
        yields = json.loads(json.dumps(yields))
        failed = isinstance(yields[-1], dict) and yields[-1].keys() == {"error"}
        kind = self.answer.kind if self.answer else None
        assert failed == (kind == "json error"), yields
        if self.answer is None:
            return
        shown: Any
        if failed:
            (shown,), told = _values(self.answer.text), json.loads(yields[-1]["error"])
        elif kind == "sse output":
            shown, told = events(self.answer.text), events("".join(yields))
        else:
            shown, told = [*_values(self.answer.text)], yields
        assert matches(shown, told), json.dumps(told, ensure_ascii=False)[:2000]


def blocks() -> list[Block]:
    """All blocks of JSON and events."""
    found = []
    for match in BLOCK.finditer(DOCUMENT):
        language, told, text = match.groups()
        role, *words = shlex.split(told) or [""]
        line = DOCUMENT.count("\n", 0, match.start()) + 1
        found.append(Block(f"{language} {role}", tuple(words), text, line))
    return found


def examples(*, endpoint: bool) -> list[Example]:
    """The jobs that need an endpoint with all features, or those that don't."""
    several = blocks()
    following = [*several[1:], None]
    return [
        Example(job, after if after and after.kind.endswith((" output", " error")) else None)
        for job, after in zip(several, following, strict=True)
        if job.kind == "json job" and (ENDPOINT in job.words) == endpoint
    ]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without the marks of code."""
    section = re.split(r"\n#+ ", DOCUMENT.split(f"# {heading}\n")[1])[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines[1:]]


def events(text: str) -> list[Any]:
    """The events of a stream, each with its name, if it has one, and its data."""
    whole = [event.splitlines() for event in text.strip().split("\n\n")]
    return [[*lines[:-1], _data(lines[-1].removeprefix("data: "))] for lines in whole]


def matches(shown: Any, told: Any) -> bool:
    """Compare with what is shown, where ``ANY`` stands for anything."""
    if shown == ANY:
        return True
    if type(shown) is not type(told):
        return False
    if isinstance(shown, dict):
        return _matching_keys(shown, told)
    if isinstance(shown, list):
        if ANY in shown[-1:]:
            shown, told = shown[:-1], told[: len(shown) - 1]
        return len(shown) == len(told) and all(map(matches, shown, told))
    if isinstance(shown, str):
        pattern = ".*".join(map(re.escape, shown.split(ANY)))
        return bool(re.fullmatch(pattern, told, re.DOTALL))
    # Figures of an embedder or a model differ a little from machine to machine.
    return bool(math.isclose(shown, told, abs_tol=1e-3)) if type(shown) is float else shown == told


def _matching_keys(shown: dict[str, Any], told: dict[str, Any]) -> bool:
    named = shown.keys() - {ANY}
    all_there = named <= told.keys() if ANY in shown else named == told.keys()
    return all_there and all(matches(shown[key], told[key]) for key in named)


def _data(text: str) -> Any:
    return text if text in ("[DONE]", ANY) else json.loads(text)


def _values(text: str) -> Iterator[Any]:
    """Decode JSON values that stand below each other."""
    decoder, place = json.JSONDecoder(), 0
    while rest := text[place:].lstrip():
        value, length = decoder.raw_decode(rest)
        place = len(text) - len(rest) + length
        yield value
