"""The doctor's findings, and how they are printed."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from worker.estimates import GIB

# Characters of a line, and of a topic in it.
_LINE = 100
_TOPIC = 24


class Level(StrEnum):
    """The severity of a finding: only a failure keeps a worker from starting."""

    OK = "ok"
    UNKNOWN = "?"
    WARN = "warn"
    FAIL = "FAIL"


_COUNTED = {Level.FAIL: "failure", Level.WARN: "warning", Level.UNKNOWN: "unknown"}


@dataclass(frozen=True)
class Finding:
    """The result of one check; ``change`` is what to do about it, if anything."""

    level: Level
    topic: str
    text: str
    change: str = ""

    def of_engine(self, prefix: str) -> Self:
        """Return the finding on an engine, by the prefix of its settings: a topic of its own."""
        return replace(self, topic=f"embedder: {self.topic}") if prefix else self


def failed(findings: Sequence[Finding]) -> bool:
    return any(finding.level is Level.FAIL for finding in findings)


def render(findings: Sequence[Finding]) -> str:
    """Return the findings as lines of text, the verdict last."""
    return f"{listed(findings)}\n{summary(findings)}\n"


def summary(findings: Sequence[Finding], where: str = "") -> str:
    """Return whether the worker would start, and how much speaks against it or is not known.

    Args:
        findings: all of them.
        where: it would start, if it would: " on ...".
    """
    counts = Counter(finding.level for finding in findings)
    start = f"start{where}{', as far as is known' * bool(counts[Level.UNKNOWN])}"
    against = [
        f"{counts[level]} {word}{'s' * (counts[level] > 1 and level is not Level.UNKNOWN)}"
        for level, word in _COUNTED.items()
        if counts[level]
    ]
    total = f": {', '.join(against)}" if against else ""
    return f"The worker would {'not start' if counts[Level.FAIL] else start}{total}."


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


def readable_size(size: float) -> str:
    """Return a number of bytes in GiB, or in MiB if it is small."""
    return f"{size / GIB:.1f} GiB" if size >= 0.1 * GIB else f"{size / 2**20:.1f} MiB"
