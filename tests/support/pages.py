"""Tables of pages in docs/ that tests generate from their results."""

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

# If this variable is set, pages are written instead of compared. Tests may clear the environment.
WRITE = "WRITE_PAGES"
_WRITING = WRITE in os.environ


def table_row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |\n"


def shorten(text: str, max_length: int = 180) -> str:
    """Return the first line of a message, cut off after a word."""
    first, *more = text.splitlines()
    if len(first) > max_length:
        return f"{first[:max_length].rpartition(' ')[0]} …"
    return f"{first} …" if more else first


def check_table(page: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Check that a page's table has these rows, or write them; its columns identify the table."""
    head = table_row(columns) + table_row("---" for _ in columns)
    expected = "".join(map(table_row, rows))
    above, found, below = page.read_text().partition(head)
    assert found, f"{page.name} has no table {head}"
    table = "".join(
        itertools.takewhile(lambda text: text[0] == "|", below.splitlines(keepends=True))
    )
    if _WRITING:
        page.write_text(above + head + expected + below.removeprefix(table))
    else:
        assert table.splitlines() == expected.splitlines(), f"set {WRITE}=1 to write {page.name}"
