"""Mistakes that operators make in settings, and the messages about them.

A row is the settings, the name that the message must have, and a part of its text. ``<folder>`` in
a value stands for a directory that holds ``FILES``. No message may repeat SECRET.
"""

import json
from pathlib import Path

_DATA = json.loads(Path(__file__).with_suffix(".json").read_text())

SECRET = "sk-canary"
FILES: dict[str, str] = _DATA["files"]
# Wrong values of single settings, which can all stand in one environment.
SINGLE: list[tuple[str, str, str]] = [
    (name, value, words) for name, value, words in _DATA["single"]
]
# Mistakes that need another setting, or a file, or that are of a setting with another mistake.
TOGETHER: list[tuple[dict[str, str], str, str]] = [
    (settings, name, words) for settings, name, words in _DATA["together"]
]
# Misspelled names and the settings that were meant: warnings, not mistakes.
TYPOS: dict[str, str] = _DATA["misspelled"]


def placed(settings: dict[str, str], folder: Path) -> dict[str, str]:
    """Write the files to a folder; return the settings with its path in them."""
    for name, content in FILES.items():
        (folder / name).write_text(content)
    return {name: value.replace("<folder>", str(folder)) for name, value in settings.items()}
