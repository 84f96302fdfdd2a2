"""Rows in CSV: a header that names the columns, then a prompt and its answer in each row."""

import csv
from collections.abc import Iterator
from typing import BinaryIO

from trainer.lines import LONGEST_ROW, TOO_LONG, Blanks, Found, Line, lines
from trainer.mistakes import Mistakes, WrongRowError
from trainer.values import SHAPES, pair_in, prompt_in

# How the messages of Python's csv begin, and what to say instead.
ERRORS = {
    "unexpected end": "a quotation mark is never closed",
    "new-line character": "a line ends with a carriage return alone; it has to be \\n or \\r\\n",
    "',' expected": "a quotation mark in a quoted field has to be doubled",
}


def csv_rows(opened: BinaryIO, mistakes: Mistakes) -> Iterator[Found]:
    """Yield the rows that are right, and note what is wrong with the others."""
    # A field may be as long as its row; the module's own limit is shorter.
    csv.field_size_limit(2 * LONGEST_ROW)
    records = _records(opened, mistakes)
    line, header = next(records, (1, None))
    if header is None:
        return
    try:
        names, pair = _columns(header)
    except WrongRowError as wrong:
        mistakes.add(line, wrong.message)
        return
    blanks = Blanks(mistakes)
    for line, fields in records:
        if fields is None:
            blanks.followed()
        elif not any(field.strip() for field in fields):
            blanks.add(line)
        else:
            blanks.followed()
            try:
                value = prompt_in(_named(names, fields), pair)
            except WrongRowError as wrong:
                mistakes.add(line, wrong.message)
            else:
                yield Found(line, value, len(value.prompt) + len(value.answer))


def _columns(header: list[str]) -> tuple[list[str], tuple[str, str]]:
    """Return the columns' names, and which of them are the prompt's and the answer's."""
    names = [name.strip().lower() for name in header]
    if len(set(names)) < len(names):
        raise WrongRowError("the header names a column twice")
    if (pair := pair_in(names)) is None:
        separated = len(names) == 1 and any(mark in names[0] for mark in ";\t|")
        hint = "; columns are separated by commas" if separated else ""
        raise WrongRowError(f"the first line has to name the columns {SHAPES}{hint}")
    return names, pair


def _named(names: list[str], fields: list[str]) -> dict[str, str]:
    if len(fields) != len(names):
        count = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
        raise WrongRowError(f"the row has {count}, and the header {len(names)}")
    return dict(zip(names, fields, strict=True))


class _Feed:
    """Gives the lines of one row after another to Python's reader."""

    def __init__(self, given: Iterator[Line]) -> None:
        self._given = given
        self._size = 0
        self._flaws: list[Line] = []

    def __iter__(self) -> "_Feed":
        return self

    def __next__(self) -> str:
        line = next(self._given)
        self._size += len(line.text if line.text.isascii() else line.text.encode())
        if line.flaw is not None:
            self._flaws.append(line)
        if line.flaw == TOO_LONG or self._size > LONGEST_ROW:
            hint = "a quotation mark may be missing; what follows has not been read"
            raise WrongRowError(f"{TOO_LONG}: {hint}")
        return line.text

    def flaws(self) -> list[Line]:
        """Return the lines of the row that are no text, and begin a new row."""
        flaws, self._flaws, self._size = self._flaws, [], 0
        return flaws


def _records(opened: BinaryIO, mistakes: Mistakes) -> Iterator[tuple[int, list[str] | None]]:
    """Yield the first line of each record, and its fields; None: they have mistakes."""
    feed = _Feed(lines(opened))
    reader = csv.reader(feed, strict=True)
    while True:
        line = reader.line_num + 1
        fields: list[str] | None = None
        wrong: str | None = None
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            told = (said for begin, said in ERRORS.items() if str(error).startswith(begin))
            wrong = next(told, "the row is no CSV")
        except WrongRowError as error:
            mistakes.add(line, error.message)
            return
        if flaws := feed.flaws():
            fields = None
            for flaw in flaws:
                mistakes.add(flaw.number, flaw.flaw or "")
        elif wrong is not None:
            mistakes.add(line, wrong)
        yield line, fields
