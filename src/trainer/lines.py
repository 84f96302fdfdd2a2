"""The lines of a file of rows, and what its rows are read into."""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from trainer.mistakes import Mistakes
from trainer.values import Value

# Bytes.
LONGEST_ROW = 1 << 20
TOO_LONG = f"the row has more than {LONGEST_ROW:,} bytes"


class Found(NamedTuple):
    """A row, the number of the line where it begins, and its characters in the file."""

    line: int
    value: Value
    size: int


class Line(NamedTuple):
    """A line with its end; ``flaw``: why it is no text, or more than a row may be."""

    number: int
    text: str
    flaw: str | None


def lines(opened: BinaryIO) -> Iterator[Line]:
    """Yield the lines from here on; of one that is too long, its end."""
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
        yield Line(number, text, flaw)


class Blanks:
    """Blank lines, which are right at the end of a file only."""

    def __init__(self, mistakes: Mistakes) -> None:
        self._mistakes = mistakes
        self._lines: list[int] = []

    def add(self, line: int) -> None:
        self._lines.append(line)

    def followed(self) -> None:
        """Note those so far as mistakes: a row follows."""
        for line in self._lines:
            self._mistakes.add(line, "the line is empty")
        self._lines.clear()
