"""Mistakes that operators make in settings, and the messages about them.

A row has the settings, the name that the message must contain, and a part of its text. ``<folder>``
in a value is replaced with a directory that contains ``FILES``. No message may repeat SECRET.
"""

import json
from pathlib import Path

_DATA = json.loads(Path(__file__).with_suffix(".json").read_text())

SECRET = "sk-canary"
FILES: dict[str, str] = _DATA["files"]
# Wrong values of single settings, which can all be in one environment.
SINGLE: list[tuple[str, str, str]] = [
    (name, value, words) for name, value, words in _DATA["single"]
]
# Mistakes that need another setting or a file, and further mistakes in a setting of ``SINGLE``.
TOGETHER: list[tuple[dict[str, str], str, str]] = [
    (settings, name, words) for settings, name, words in _DATA["together"]
]
# Misspelled names and the intended settings: these cause warnings, not errors.
TYPOS: dict[str, str] = _DATA["misspelled"]


def write_files(settings: dict[str, str], folder: Path) -> dict[str, str]:
    """Write the files to a folder; return the settings with the folder's path."""
    for name, content in FILES.items():
        (folder / name).write_text(content)
    return {name: value.replace("<folder>", str(folder)) for name, value in settings.items()}
