"""Options, choices and architectures that vLLM's releases removed or added, for messages.

``builder/vllm_history.py`` maintains the record. It covers some of vLLM's releases, not all.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

HISTORY_FILE = Path(__file__).with_name("history.json")

EntryKind = Literal["options", "choices", "architectures"]


@dataclass(frozen=True)
class Removal:
    """The last checked release with an option, choice or architecture, and the first without it."""

    last: str
    first_without: str

    @property
    def first_series_without(self) -> str:
        """The first series of releases without the entry, such as 0.18; some were not checked."""
        return ".".join(self.first_without.split(".")[:2])


def find_removal(kind: EntryKind, name: str) -> Removal | None:
    """Return when vLLM removed an option, choice or architecture; None if unknown.

    An option's name is the name of its variable (``SWAP_SPACE``). A choice is prefixed with its
    option (``QUANTIZATION=aqlm``).
    """
    releases = load_history()["removed"][kind].get(name)
    return Removal(*releases.split()) if releases else None


def find_first_release(kind: Literal["options", "architectures"], name: str) -> str | None:
    """Return the first checked release with an option or architecture; None if unknown."""
    return load_history()["added"][kind].get(name)


def explain_removed_architecture(names: Sequence[str]) -> str:
    """Return since when vLLM lacks an architecture, and an image that has it; blank if unknown."""
    for name in names:
        if removal := find_removal("architectures", name):
            return (
                f"vLLM has had no {name} since {removal.first_series_without}: use an image with "
                f"vLLM {removal.last}, or another model"
            )
    return ""


@cache
def load_history() -> dict[str, dict[str, dict[str, str]]]:
    """Load the record: ``removed`` ("LAST FIRST_WITHOUT") and ``added`` ("FIRST"), by kind."""
    content: dict[str, dict[str, dict[str, str]]] = json.loads(HISTORY_FILE.read_text())
    return content
