"""The doctor's findings, and how they are printed."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

# Characters of a line, and of a topic in it.
_LINE = 100
_TOPIC = 24


class Level(StrEnum):
    """The severity of a finding: only a failure keeps a worker from starting."""

    OK = "ok"
    UNKNOWN = "?"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """The result of one check; ``change`` is what to do about it, if anything."""

    level: Level
    topic: str
    text: str
    change: str = ""


def failed(findings: Sequence[Finding]) -> bool:
    return any(finding.level is Level.FAIL for finding in findings)


def render(findings: Sequence[Finding]) -> str:
    """Return the findings as lines of text, the verdict last."""
    failures = sum(finding.level is Level.FAIL for finding in findings)
    doubts = sum(finding.level in (Level.WARN, Level.UNKNOWN) for finding in findings)
    verdict = "would not start" if failures else "would start"
    counts = [
        f"{count} {word}{'s' * (count > 1)}"
        for count, word in ((failures, "failure"), (doubts, "warning"))
        if count
    ]
    total = f": {', '.join(counts)}" if counts else ""
    return f"{listed(findings)}\nThe worker {verdict}{total}.\n"


def listed(findings: Sequence[Finding]) -> str:
    """Return the findings as lines of text, without a verdict."""
    return "".join(f"{line}\n" for finding in findings for line in _lines(finding))


def _lines(finding: Finding) -> list[str]:
    indent = " " * (6 + _TOPIC)
    texts = finding.text.splitlines() or [""]
    changes = [f"-> {line}" for line in finding.change.splitlines()]
    wrapped = [
        line
        for text in [*texts, *changes]
        # A path or a name stays whole.
        for line in textwrap.wrap(
            text, _LINE - len(indent), break_long_words=False, break_on_hyphens=False
        )
    ]
    first = f"{finding.level:<5} {finding.topic:<{_TOPIC}}{wrapped[0]}"
    return [first, *(f"{indent}{line}" for line in wrapped[1:])]
