"""Options, choices and architectures that vLLM's releases removed or added, for messages.

``builder/vllm_history.py`` maintains the record. It covers some of vLLM's releases, not all.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from packaging.version import Version

# The first release of vLLM that has all names which the worker uses.
OLDEST_VLLM = "0.29.0"
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
    return load_history()["added"][kind].get(name)


def find_successor(architecture: str) -> str | None:
    return load_history()["successors"]["architectures"].get(architecture)


def explain_removal(architectures: Iterable[str]) -> tuple[str, str] | None:
    """Return why vLLM can't run a model with these architectures, and the remedy.

    Both are parts of a message without a full stop. The result is None if vLLM has removed none of
    the architectures. The caller checks first that the installed vLLM can't run them: an older one
    may have them, and transformers' code may run them.
    """
    for name in architectures:
        if not (removal := find_removal("architectures", name)):
            continue
        successor = find_successor(name)
        remedy = "use another model" + (f", such as {successor}" if successor else "")
        if Version(removal.last) >= Version(OLDEST_VLLM):
            remedy += f", or an image with vLLM {removal.last}"
        else:
            remedy += f"; vLLM {removal.last}, the last with it, is too old for this worker"
        return f"vLLM has had no {name} since {removal.first_series_without}", remedy
    return None


@cache
def load_history() -> dict[str, dict[str, dict[str, str]]]:
    """Load the record, by kind.

    ``removed`` has "LAST FIRST_WITHOUT" and ``added`` "FIRST". ``successors``, which is written by
    hand, has a repository on the hub.
    """
    content: dict[str, dict[str, dict[str, str]]] = json.loads(HISTORY_FILE.read_text())
    return content
