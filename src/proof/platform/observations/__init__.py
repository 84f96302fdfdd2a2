"""Functions that observe one behaviour of the platform each, and their result."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class StepResult:
    """The result of an observation.

    Attributes:
        facts: Behaviour that is compared with the emulator's, by a description of each fact.
        figures: Times and other values that differ between runs, so that they are not compared.
        log: The last lines of a worker's log.
    """

    facts: dict[str, Any]
    figures: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
