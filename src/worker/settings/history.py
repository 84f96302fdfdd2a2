"""What releases of vLLM have removed, and what only newer ones have, for messages.

``builder/vllm_history.py`` keeps the record, which is of some of vLLM's releases rather than all.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

RECORD = Path(__file__).with_name("history.json")

Kind = Literal["options", "choices", "architectures"]


@dataclass(frozen=True)
class Removal:
    """The last release seen with something, and the first one seen without it."""

    last: str
    first_without: str

    @property
    def since(self) -> str:
        """The series of releases (0.18) without it: not every release was looked at."""
        return ".".join(self.first_without.split(".")[:2])


def removal(kind: Kind, name: str) -> Removal | None:
    """Return when vLLM removed something, or None if it is not known to have.

    An option's name is that of the variable (``SWAP_SPACE``). A choice has its option before it
    (``QUANTIZATION=aqlm``).
    """
    releases = record()["removed"][kind].get(name)
    return Removal(*releases.split()) if releases else None


def first_release(kind: Literal["options", "architectures"], name: str) -> str | None:
    """Return the first release seen with an option or an architecture that older ones lack."""
    return record()["added"][kind].get(name)


@cache
def record() -> dict[str, dict[str, dict[str, str]]]:
    """Read the record: ``removed`` ("LAST FIRST_WITHOUT") and ``added`` ("FIRST"), by kind."""
    content: dict[str, dict[str, dict[str, str]]] = json.loads(RECORD.read_text())
    return content
