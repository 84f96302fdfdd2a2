"""Tables of pages in docs/ that are made of what tests see."""

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

# Set, pages are written instead of compared. Tests may clear the environment.
WRITE = "WRITE_PAGES"
_WRITING = WRITE in os.environ


def line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |\n"


def shortened(text: str, most: int = 180) -> str:
    """Return a message's first line, cut at a word."""
    first, *more = text.splitlines()
    if len(first) > most:
        return f"{first[:most].rpartition(' ')[0]} …"
    return f"{first} …" if more else first


def check_table(page: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Check that a page's table is as it was seen, or write it; it is found by its columns."""
    head = line(columns) + line("---" for _ in columns)
    seen = "".join(map(line, rows))
    above, found, below = page.read_text().partition(head)
    assert found, f"{page.name} has no table {head}"
    table = "".join(
        itertools.takewhile(lambda text: text[0] == "|", below.splitlines(keepends=True))
    )
    if _WRITING:
        page.write_text(above + head + seen + below.removeprefix(table))
    else:
        assert table.splitlines() == seen.splitlines(), f"set {WRITE}=1 to write {page.name}"
