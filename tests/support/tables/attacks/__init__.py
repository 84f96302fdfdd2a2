"""Hostile requests, by kind: each did harm once, or an attacker may hope that it will."""

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
from support.tables.attacks.early import EARLY
from support.tables.attacks.row import Attack

__all__ = ["EARLY", "KINDS", "Attack"]

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
