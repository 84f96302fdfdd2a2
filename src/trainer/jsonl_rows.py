"""Rows in JSONL: in each line an object with a prompt and its answer, or with messages."""

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from trainer.lines import Blanks, Found, Line, lines
from trainer.mistakes import Mistakes, WrongRowError
from trainer.values import Value, quoted, row_in


def jsonl_rows(opened: BinaryIO, mistakes: Mistakes) -> Iterator[Found]:
    """Yield the rows that are right, and note what is wrong with the others."""
    blanks = Blanks(mistakes)
    kind: type[Value] | None = None
    for line in lines(opened):
        if not line.text.strip() and line.flaw is None:
            blanks.add(line.number)
            continue
        blanks.followed()
        try:
            value = _json_row(line, kind)
        except WrongRowError as wrong:
            mistakes.add(line.number, wrong.message)
        else:
            kind = type(value)
            yield Found(line.number, value, len(line.text))


def _json_row(line: Line, kind: type[Value] | None) -> Value:
    if line.flaw is not None:
        raise WrongRowError(line.flaw)
    value = row_in(_parsed(line.text))
    if not isinstance(value, kind or Value):
        raise WrongRowError("a file has either messages or prompts, and this one began otherwise")
    return value


def _parsed(text: str) -> Any:
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise WrongRowError("a text has half of a surrogate pair in it") from None
    except (ValueError, RecursionError):
        raise WrongRowError("the line is no JSON") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise WrongRowError(f"the key {quoted(twice)} stands twice in an object")
    return found


def _constant(name: str) -> None:
    raise WrongRowError(f"{name} is no JSON")
