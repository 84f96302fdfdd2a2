"""Samples of models' outputs, written as tables/parser_outputs.yaml describes."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from string import Template
from typing import Any, Literal

import yaml

from support import ROOT

TABLE = ROOT / "tests" / "support" / "tables" / "parser_outputs.yaml"

Kind = Literal["tools", "reasoning"]
Arguments = Mapping[str, Any]

# Calls of the samples: the name of a tool, and its arguments.
BOOK = (
    "book_room",
    {
        "city": "Köln",
        "nights": 3,
        "guest": {"name": "Ana", "vip": True},
        "note": 'She said "hi",\nthen left → 東京',
    },
)
ROME = ("book_room", {"city": "Rome", "nights": 1})
NOW: tuple[str, Arguments] = ("now", {})
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "book_room",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "nights": {"type": "integer"},
                    "guest": {
                        "type": "object",
                        "properties": {"name": {"type": "string"}, "vip": {"type": "boolean"}},
                    },
                    "note": {"type": "string"},
                },
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
    },
]

INTRODUCTION = "\n\nI look it up.\n"
TEXT = "A room in Köln → 東京 is far →\n\n1. costs < 90 €, {taxes} [included]\n2. has a view."
THOUGHTS = "They ask for a room; is 3 < 4?\nHere I check: yes, I book it."


@dataclass(frozen=True)
class Sample:
    """An output of a model, and its meaning.

    Args:
        name: A description.
        text: The output, with its markers.
        content: Its text for the caller.
        reasoning: Its reasoning.
        calls: The names and arguments of its calls.
        share: The share of its tokens that are generated before the limit; 1 if it is complete.
    """

    name: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, Arguments], ...] = ()
    share: float = 1


@dataclass(frozen=True)
class Syntax:
    """A row of the table, which describes the keys."""

    parsers: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    special: bool = False
    spelled: bool = False
    prompts: tuple[str, ...] = ("",)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    text: tuple[str, str] = ("", "")
    harmony: bool = False
    template: Mapping[str, Any] | None = None
    call: str = ""
    argument: str = ""
    values: str = "plain"
    joined_by: str = ""
    open: str = ""
    between: str = ""
    close: str = ""
    one_call: bool = False
    first: bool = False
    begin: str = ""
    tools: tuple[str, ...] = ()

    def write_text(self, text: str) -> str:
        return text.join(self.text)

    def write_calls(self, *calls: tuple[str, Arguments]) -> str:
        written = [self._write_call(index, *call) for index, call in enumerate(calls)]
        return self.open + self.between.join(written) + self.close

    def _write_call(self, index: int, name: str, arguments: Arguments) -> str:
        if not self.argument:
            written = to_json(arguments)
        else:
            pairs = (self._write_argument(key, value) for key, value in arguments.items())
            written = self.joined_by.join(pairs)
        call = Template(self.call)
        return call.substitute(name=name, args=written, index=index, number=index + 1)

    def _write_argument(self, key: str, value: Any) -> str:
        is_text = str(isinstance(value, str)).lower()
        kind = {str: "string", int: "number", dict: "object"}[type(value)]
        written = VALUES[self.values](value)
        argument = Template(self.argument)
        return argument.substitute(key=key, value=written, type=kind, is_text=is_text)


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write_plain(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)


def _write_escaped(value: Any) -> str:
    return f"<escape>{_write_plain(value)}<escape>"


def _write_quoted(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_write_quoted(item)}" for key, item in value.items()) + "}"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else to_json(value)


VALUES = {
    "plain": _write_plain,
    "python": repr,
    "escape": _write_escaped,
    "quote": _write_quoted,
}


@cache
def read_syntaxes(kind: Kind) -> tuple[Syntax, ...]:
    rows = yaml.safe_load(TABLE.read_text(encoding="utf-8"))[kind].values()
    return tuple(_read_syntax(row) for row in rows)


def _read_syntax(row: dict[str, Any]) -> Syntax:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    return Syntax(**values)


def find_syntaxes(kind: Kind, name: str) -> tuple[Syntax, ...]:
    """Return the rows that list a parser; empty without one."""
    return tuple(row for row in read_syntaxes(kind) if name in row.parsers)


def samples_of_tools(syntax: Syntax) -> Iterator[Sample]:
    book, text = syntax.write_calls(BOOK), syntax.write_text(INTRODUCTION)
    content = INTRODUCTION
    yield Sample("a call", book, calls=(BOOK,))
    yield Sample("a short call", syntax.write_calls(ROME), calls=(ROME,))
    yield Sample("a call without arguments", syntax.write_calls(NOW), calls=(NOW,))
    yield Sample("text", syntax.write_text(TEXT), TEXT)
    yield Sample("text like a call", syntax.write_text(syntax.begin), syntax.begin)
    if syntax.first:
        yield Sample("text, then a call", text + book, INTRODUCTION + book)
        text = content = ""
    else:
        yield Sample("text, then a call", text + book, INTRODUCTION, calls=(BOOK,))
    yield Sample("a call that is cut off", text + book, content, calls=(BOOK,), share=0.7)
    if not syntax.one_call:
        calls = (ROME, BOOK)
        yield Sample("two calls", text + syntax.write_calls(*calls), content, calls=calls)


def samples_of_reasoning(syntax: Syntax, tools: Syntax | None = None) -> Iterator[Sample]:
    """Return outputs with reasoning, and with calls if there is a row of tools."""
    thoughts = syntax.open + THOUGHTS + syntax.close
    text = syntax.write_text(TEXT)
    yield Sample("reasoning, then text", thoughts + text, TEXT, THOUGHTS)
    yield Sample("no reasoning", text, TEXT)
    yield Sample("no thoughts", syntax.open + syntax.close + text, TEXT)
    yield Sample("unfinished reasoning", syntax.open + THOUGHTS, "", THOUGHTS, share=0.7)
    if tools:
        book, introduction = tools.write_calls(BOOK), syntax.write_text(INTRODUCTION)
        calls = (BOOK,)
        yield Sample("reasoning, then a call", thoughts + book, "", THOUGHTS, calls)
        if not tools.first:
            together = thoughts + introduction + book
            yield Sample("reasoning, text and a call", together, INTRODUCTION, THOUGHTS, calls)
