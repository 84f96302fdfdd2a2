"""Reads files of rows one row at a time, and notes what is wrong in them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from trainer.csv_rows import csv_rows
from trainer.jsonl_rows import jsonl_rows
from trainer.lines import Found
from trainer.mistakes import Mistakes
from trainer.spec import Data

BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
MOST_ROWS = 100_000


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
        found = (csv_rows if form == "csv" else jsonl_rows)(opened, mistakes)
        count = 0
        for row in found:
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
