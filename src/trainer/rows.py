"""Reads files of rows, JSONL or CSV, one row at a time, and notes what is wrong in them."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from trainer.spec import Data, File, Mistake
from trainer.values import SHAPES, Value, WrongRowError, pair_in, prompt_in, quoted, row_in

BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
MOST_ROWS = 100_000
# Bytes.
LONGEST_ROW = 1 << 20
EMPTY = "the line is empty"
TOO_LONG = f"the row has more than {LONGEST_ROW:,} bytes"
# Mistakes that are listed; the rest is counted.
MOST_MISTAKES = 100
# How the messages of Python's csv begin, and what to say instead.
CSV_ERRORS = {
    "unexpected end": "a quotation mark is never closed",
    "new-line character": "a line ends with a carriage return alone; it has to be \\n or \\r\\n",
    "',' expected": "a quotation mark in a quoted field has to be doubled",
}


class Mistakes:
    """The mistakes in a file."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.count = 0
        self._found: list[Mistake] = []

    def add(self, line: int | None, message: str) -> None:
        """Note a mistake; ``line`` is None if it is the whole file's."""
        self.count += 1
        if len(self._found) < MOST_MISTAKES:
            self._found.append(Mistake(file=self.file, line=line, message=message))

    @property
    def first(self) -> list[Mistake]:
        """The mistakes that are listed, in the order of their lines."""
        return sorted(self._found, key=lambda mistake: mistake.line or 0)


class Found(NamedTuple):
    """A row, the number of the line where it begins, and its characters in the file."""

    line: int
    value: Value
    size: int


class _Wrong(NamedTuple):
    line: int
    message: str


def rows(data: Data, mistakes: Mistakes) -> Iterator[Found]:
    """Yield the rows of a file that are right, and note the mistakes in it.

    Raises:
        OSError: it can't be read.
    """
    if not data.path.is_file():
        mistakes.add(None, "there is no such file")
        return
    form = data.form or _form(data.path)
    with data.path.open("rb") as opened:
        begin = opened.read(len(BOM))
        if begin.startswith(UTF_16):
            mistakes.add(None, "the file is UTF-16, and has to be UTF-8")
            return
        opened.seek(len(BOM) if begin == BOM else 0)
        count = 0
        for row in _right((_csv if form == "csv" else _jsonl)(opened), mistakes):
            count += 1
            if count > MOST_ROWS:
                mistakes.add(row.line, f"the file has more than {MOST_ROWS:,} rows")
                return
            yield row
    if not count and not mistakes.count:
        mistakes.add(None, "the file has no rows")


def _form(path: Path) -> Literal["csv", "jsonl"]:
    suffix = path.suffix.lower()
    if suffix in {".csv", ".jsonl", ".ndjson", ".json"}:
        return "csv" if suffix == ".csv" else "jsonl"
    with path.open("rb") as opened:
        return "jsonl" if opened.read(100).removeprefix(BOM).lstrip()[:1] in b"{[" else "csv"


def _right(records: Iterator[Found | _Wrong], mistakes: Mistakes) -> Iterator[Found]:
    """Yield the rows, and note the mistakes. Empty lines are none at the end of a file."""
    empty: list[_Wrong] = []
    for record in records:
        if isinstance(record, _Wrong) and record.message == EMPTY:
            empty.append(record)
            continue
        for line in empty:
            mistakes.add(*line)
        empty.clear()
        if isinstance(record, _Wrong):
            mistakes.add(*record)
        else:
            yield record


def _lines(opened: BinaryIO) -> Iterator[tuple[int, str, str | None]]:
    """Yield the lines from here on; of one that is too long, its end.

    Each with its number, and with why it is no text, or more than a row may be.
    """
    number = 0
    while line := opened.readline(LONGEST_ROW + 2):
        number += 1
        flaw = TOO_LONG if len(line.rstrip(b"\r\n")) > LONGEST_ROW else None
        while not line.endswith(b"\n") and (rest := opened.readline(LONGEST_ROW)):
            line = rest
        text = line.decode(errors="replace")
        if flaw is None and "\0" in text:
            flaw = "the line has a NUL character in it"
        elif flaw is None and "\ufffd" in text and text.encode() != line:
            flaw = "the line is not UTF-8"
        yield number, text, flaw


def _jsonl(opened: BinaryIO) -> Iterator[Found | _Wrong]:
    """Yield the lines: in each an object with a prompt and its answer, or with messages."""
    kind: type[Value] | None = None
    for number, text, flaw in _lines(opened):
        if flaw is not None:
            yield _Wrong(number, flaw)
        elif not text.strip():
            yield _Wrong(number, EMPTY)
        else:
            try:
                value = row_in(_parsed(text))
            except WrongRowError as wrong:
                yield _Wrong(number, wrong.message)
                continue
            kind = kind or type(value)
            if isinstance(value, kind):
                yield Found(number, value, len(text))
            else:
                message = "a file has either messages or prompts, and this one began otherwise"
                yield _Wrong(number, message)


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


def _csv(opened: BinaryIO) -> Iterator[Found | _Wrong]:
    """Yield the rows below a header that names the columns of a prompt and its answer."""
    # A field may be as long as its row; the module's own limit is shorter.
    csv.field_size_limit(2 * LONGEST_ROW)
    columns: _Columns | None = None
    for line, fields, wrong in _records(opened):
        if wrong:
            yield from wrong
        elif columns and not any(field.strip() for field in fields):
            yield _Wrong(line, EMPTY)
        else:
            try:
                if columns is None:
                    columns = _columns(fields)
                    continue
                value = prompt_in(columns.named(fields), columns.pair)
            except WrongRowError as error:
                yield _Wrong(line, error.message)
            else:
                yield Found(line, value, len(value.prompt) + len(value.answer))
        if columns is None:
            return


class _Feed:
    """The lines of a file for Python's reader, with what is wrong in those of one record."""

    def __init__(self, opened: BinaryIO) -> None:
        self._lines = _lines(opened)
        self.begin()

    def begin(self) -> None:
        """Begin a record."""
        self.size = 0
        self.flaws: list[_Wrong] = []

    def __iter__(self) -> Iterator[str]:
        for number, text, flaw in self._lines:
            self.size += len(text if text.isascii() else text.encode())
            if flaw == TOO_LONG or self.size > LONGEST_ROW:
                hint = "a quotation mark may be missing; what follows has not been read"
                raise WrongRowError(f"{TOO_LONG}: {hint}")
            if flaw is not None:
                self.flaws.append(_Wrong(number, flaw))
            yield text


def _records(opened: BinaryIO) -> Iterator[tuple[int, list[str], list[_Wrong]]]:
    """Yield the first line of each record, and its fields; or what is wrong in it."""
    feed = _Feed(opened)
    reader = csv.reader(feed, strict=True)
    while True:
        line = reader.line_num + 1
        feed.begin()
        try:
            yield line, next(reader), feed.flaws
        except StopIteration:
            return
        except csv.Error as error:
            said = (words for begin, words in CSV_ERRORS.items() if str(error).startswith(begin))
            yield line, [], feed.flaws or [_Wrong(line, next(said, "the row is no CSV"))]
        except WrongRowError as error:
            yield line, [], [_Wrong(line, error.message)]
            return


class _Columns(NamedTuple):
    """The columns' names, and which of them are the prompt's and the answer's."""

    names: list[str]
    pair: tuple[str, str]

    def named(self, fields: list[str]) -> dict[str, str]:
        if len(fields) != len(self.names):
            count = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            raise WrongRowError(f"the row has {count}, and the header {len(self.names)}")
        return dict(zip(self.names, fields, strict=True))


def _columns(header: list[str]) -> _Columns:
    names = [name.strip().lower() for name in header]
    if len(set(names)) < len(names):
        raise WrongRowError("the header names a column twice")
    if (pair := pair_in(names)) is None:
        separated = len(names) == 1 and any(mark in names[0] for mark in ";\t|")
        hint = "; columns are separated by commas" if separated else ""
        raise WrongRowError(f"the first line has to name the columns {SHAPES}{hint}")
    return _Columns(names, pair)
