"""What the doctor finds, and how it is shown."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

# Characters.
_LINE = 100
_TOPIC = 24


class Level(StrEnum):
    """How bad it is: only a failure keeps a worker from starting."""

    OK = "ok"
    UNKNOWN = "?"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, and what to change, if something is to be changed."""

    level: Level
    topic: str
    text: str
    change: str = ""


def failed(findings: Sequence[Finding]) -> bool:
    return any(finding.level is Level.FAIL for finding in findings)


def render(findings: Sequence[Finding]) -> str:
    """Lay the findings out as lines of text, the verdict last."""
    lines = [line for finding in findings for line in _lines(finding)]
    failures = sum(finding.level is Level.FAIL for finding in findings)
    doubts = sum(finding.level in (Level.WARN, Level.UNKNOWN) for finding in findings)
    verdict = "would not start" if failures else "would start"
    counts = [
        f"{count} {word}{'s' * (count > 1)}"
        for count, word in ((failures, "failure"), (doubts, "warning"))
        if count
    ]
    told = f": {', '.join(counts)}" if counts else ""
    return "\n".join([*lines, "", f"The worker {verdict}{told}.", ""])


def _lines(finding: Finding) -> list[str]:
    indent = " " * (6 + _TOPIC)
    told = finding.text.splitlines() or [""]
    changed = [f"-> {line}" for line in finding.change.splitlines()]
    wrapped = [
        line
        for text in [*told, *changed]
        # A path or a name is not to be broken.
        for line in textwrap.wrap(
            text, _LINE - len(indent), break_long_words=False, break_on_hyphens=False
        )
    ]
    first = f"{finding.level:<5} {finding.topic:<{_TOPIC}}{wrapped[0]}"
    return [first, *(f"{indent}{line}" for line in wrapped[1:])]
