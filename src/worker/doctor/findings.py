"""The doctor's findings, and how they are printed."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from worker.process.memory import GIB

# Widths of a printed line and of its column for the topic, in characters.
_LINE = 100
_TOPIC = 24


class Level(StrEnum):
    """The severity of a finding: only a failure prevents a worker from starting."""

    OK = "ok"
    UNKNOWN = "?"
    WARN = "warn"
    FAIL = "FAIL"


_LEVEL_WORDS = {Level.FAIL: "failure", Level.WARN: "warning", Level.UNKNOWN: "unknown"}


@dataclass(frozen=True)
class Finding:
    """The result of one check; ``change`` proposes a solution, if one is needed."""

    level: Level
    topic: str
    text: str
    change: str = ""

    def with_engine_prefix(self, prefix: str) -> Self:
        """Return the finding; for an engine whose settings have a prefix, name the embedder."""
        return replace(self, topic=f"embedder: {self.topic}") if prefix else self


def has_failure(findings: Sequence[Finding]) -> bool:
    return any(finding.level is Level.FAIL for finding in findings)


def render(findings: Sequence[Finding], table: str = "", location: str = "") -> str:
    """Format the findings, a table of verdicts, and a conclusion whether the worker would start.

    ``location`` follows "The worker would start" in the conclusion, such as " on none of them".
    """
    indent = " " * (6 + _TOPIC)
    # Don't break paths and names.
    wrapper = textwrap.TextWrapper(
        _LINE - len(indent), break_long_words=False, break_on_hyphens=False
    )
    listed = ""
    for finding in findings:
        lines = [*finding.text.splitlines(), *(f"-> {one}" for one in finding.change.splitlines())]
        first, *others = [part for line in lines for part in wrapper.wrap(line)]
        listed += f"{finding.level:<5} {finding.topic:<{_TOPIC}}{first}\n"
        listed += "".join(f"{indent}{line}\n" for line in others)
    return "\n".join(filter(None, (listed, table, f"{summary(findings, location)}\n")))


def summary(findings: Sequence[Finding], location: str = "") -> str:
    counts = Counter(finding.level for finding in findings)
    start = f"start{location}{', as far as is known' * bool(counts[Level.UNKNOWN])}"
    problems = [
        f"{counts[level]} {word}{'s' * (counts[level] > 1 and level is not Level.UNKNOWN)}"
        for level, word in _LEVEL_WORDS.items()
        if counts[level]
    ]
    total = f": {', '.join(problems)}" if problems else ""
    return f"The worker would {'not start' if counts[Level.FAIL] else start}{total}."


def readable_size(size: float) -> str:
    """Format a number of bytes in GiB, or in MiB if it is small."""
    return f"{size / GIB:.1f} GiB" if size >= 0.1 * GIB else f"{size / 2**20:.1f} MiB"
