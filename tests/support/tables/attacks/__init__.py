"""Hostile requests, by kind: each did harm once, or an attacker may hope that it will."""

import re
from collections.abc import Iterator
from pathlib import Path

from support.tables.attacks import (
    grammars,
    keys,
    media,
    numbers,
    server,
    structure,
    texts,
    volume,
    work,
)
from support.tables.attacks.row import Attack

__all__ = ["KINDS", "Attack", "early"]

KINDS: dict[str, list[Attack]] = {
    "numbers": numbers.ROWS,
    "grammars": grammars.ROWS,
    "texts": texts.ROWS,
    "structure": structure.ROWS,
    "work": work.ROWS,
    "media": media.ROWS,
    "keys": keys.KEYS,
    "templates": keys.TEMPLATES,
    "names": keys.NAMES,
    "volume": volume.ROWS,
    "http": server.ROWS,
}


def early() -> Iterator[str]:
    """Yield the rows that are refused before an engine sees them: ``kind: name``.

    A line of ``early.txt`` may stand for several rows: ``n -1 (<raw|chat>)``.
    """
    for line in Path(__file__).with_name("early.txt").read_text().splitlines():
        before, *several = re.split("[<>]", line)
        places, after = several or ("", "")
        yield from (f"{before}{place}{after}" for place in places.split("|"))
