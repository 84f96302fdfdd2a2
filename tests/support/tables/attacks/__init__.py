"""Hostile requests, by kind: each has done harm before, or an attacker may expect it to."""

from collections.abc import Iterator
from pathlib import Path

from support.tables.attacks.row import Attack
from support.tables.attacks.tables import read

__all__ = ["KINDS", "Attack", "early_refusals"]

KINDS: dict[str, list[Attack]] = {
    kind: list(read(kind))
    for kind in (
        *("numbers", "grammars", "texts", "structure", "work", "media"),
        *("keys", "templates", "names", "volume", "http"),
    )
}


def early_refusals() -> Iterator[str]:
    """Yield the rows that are refused before the engine sees them: ``kind: name``.

    A line of ``early.txt`` may name several places: ``numbers: n -1 (params|chat)``.
    """
    for line in Path(__file__).with_name("early.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        name, places = line.removesuffix(")").rsplit(" (", 1)
        yield from (f"{name} ({place})" for place in places.split("|"))
