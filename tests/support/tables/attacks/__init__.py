"""Hostile requests, by kind: each has done harm before, or an attacker may expect it to."""

from support.tables.attacks.row import Attack
from support.tables.attacks.tables import read

__all__ = ["KINDS", "Attack"]

KINDS: dict[str, list[Attack]] = {
    kind: list(read(kind))
    for kind in (
        *("numbers", "grammars", "texts", "structure", "work", "media"),
        *("keys", "templates", "names", "volume", "http"),
    )
}
