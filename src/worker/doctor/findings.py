"""The doctor's findings and its verdicts on GPUs, and how they are printed."""

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from worker.process.estimates import GIB

if TYPE_CHECKING:
    from worker.doctor.gpus.asked import Choice

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


def render(findings: Sequence[Finding], table: str = "", where: str = "") -> str:
    """Return lines of text: the findings, a table of verdicts, and whether the worker would start.

    ``where`` it would, if it would: " on ...".
    """
    listed = "".join(f"{line}\n" for finding in findings for line in _lines(finding))
    return "\n".join(filter(None, (listed, table, f"{summary(findings, where)}\n")))


def summary(findings: Sequence[Finding], where: str = "") -> str:
    """Return whether the worker would start, and how much speaks against it or is not known."""
    counts = Counter(finding.level for finding in findings)
    start = f"start{where}{', as far as is known' * bool(counts[Level.UNKNOWN])}"
    against = [
        f"{counts[level]} {word}{'s' * (counts[level] > 1 and level is not Level.UNKNOWN)}"
        for level, word in _COUNTED.items()
        if counts[level]
    ]
    total = f": {', '.join(against)}" if against else ""
    return f"The worker would {'not start' if counts[Level.FAIL] else start}{total}."


def _lines(finding: Finding) -> list[str]:
    indent = " " * (6 + _TOPIC)
    lines = [*finding.text.splitlines(), *(f"-> {line}" for line in finding.change.splitlines())]
    # A path or a name stays whole.
    whole = textwrap.TextWrapper(
        _LINE - len(indent), break_long_words=False, break_on_hyphens=False
    )
    wrapped = [part for line in lines for part in whole.wrap(line)]
    first = f"{finding.level:<5} {finding.topic:<{_TOPIC}}{wrapped[0]}"
    return [first, *(f"{indent}{line}" for line in wrapped[1:])]


def readable_size(size: float) -> str:
    """Return a number of bytes in GiB, or in MiB if it is small."""
    return f"{size / GIB:.1f} GiB" if size >= 0.1 * GIB else f"{size / 2**20:.1f} MiB"


class Fit(StrEnum):
    """Whether GPUs hold a model.

    ``SHORTER``: with less context than it could take; ``DOUBTFUL``: too close to tell, since what a
    GPU needs besides is an estimate; ``UNKNOWN``: the size of the weights or of the cache is not
    known.
    """

    FITS = "fits"
    SHORTER = "shorter"
    DOUBTFUL = "doubtful"
    UNKNOWN = "unknown"
    NO = "no"


# With a context that is known.
HELD = (Fit.FITS, Fit.SHORTER)
_LEVELS = {
    Fit.FITS: Level.OK,
    Fit.SHORTER: Level.WARN,
    Fit.DOUBTFUL: Level.WARN,
    Fit.UNKNOWN: Level.UNKNOWN,
    Fit.NO: Level.FAIL,
}


@dataclass(frozen=True)
class Verdict:
    """What is known of a model on GPUs.

    Attributes:
        choice: the GPUs.
        fit: whether they hold it.
        why: the arithmetic, or what they lack.
        context: tokens of the longest text that they hold; 0 if that is not known.
        texts: so long ones at once.
    """

    choice: "Choice"
    fit: Fit
    why: str
    context: int = 0
    texts: float = 0.0


def finding(verdict: Verdict, change: str, price: str = "") -> Finding:
    """Return a verdict as a finding, with what to change where the GPUs don't hold the model."""
    name, level = str(verdict.choice), _LEVELS[verdict.fit]
    if verdict.fit not in HELD:
        change = "" if verdict.fit is Fit.UNKNOWN else change
        return Finding(level, "memory", f"{name}: {verdict.why}", change)
    held = f"{verdict.context} tokens, {at_once(verdict)} texts of that length at once"
    text = f"{name}: {held}{price and f', {price} an hour'}; {verdict.why}"
    more = "take more of them, or larger ones, if that is not enough"
    return Finding(level, "memory", text, more if verdict.fit is Fit.SHORTER else "")


def at_once(verdict: Verdict) -> str:
    """Return how many of the longest texts are held, for messages."""
    return "any" if math.isinf(verdict.texts) else str(math.floor(verdict.texts))
