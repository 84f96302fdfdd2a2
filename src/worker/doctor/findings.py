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
    from worker.doctor.gpus.choice import GpuChoice

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
    listed = "".join(f"{line}\n" for finding in findings for line in _format_lines(finding))
    return "\n".join(filter(None, (listed, table, f"{summary(findings, location)}\n")))


def summary(findings: Sequence[Finding], location: str = "") -> str:
    """Return whether the worker would start, and the numbers of failures, warnings and unknowns."""
    counts = Counter(finding.level for finding in findings)
    start = f"start{location}{', as far as is known' * bool(counts[Level.UNKNOWN])}"
    problems = [
        f"{counts[level]} {word}{'s' * (counts[level] > 1 and level is not Level.UNKNOWN)}"
        for level, word in _LEVEL_WORDS.items()
        if counts[level]
    ]
    total = f": {', '.join(problems)}" if problems else ""
    return f"The worker would {'not start' if counts[Level.FAIL] else start}{total}."


def _format_lines(finding: Finding) -> list[str]:
    indent = " " * (6 + _TOPIC)
    lines = [*finding.text.splitlines(), *(f"-> {line}" for line in finding.change.splitlines())]
    # Don't break paths and names.
    whole = textwrap.TextWrapper(
        _LINE - len(indent), break_long_words=False, break_on_hyphens=False
    )
    wrapped = [part for line in lines for part in whole.wrap(line)]
    first = f"{finding.level:<5} {finding.topic:<{_TOPIC}}{wrapped[0]}"
    return [first, *(f"{indent}{line}" for line in wrapped[1:])]


def readable_size(size: float) -> str:
    """Format a number of bytes in GiB, or in MiB if it is small."""
    return f"{size / GIB:.1f} GiB" if size >= 0.1 * GIB else f"{size / 2**20:.1f} MiB"


class Fit(StrEnum):
    """Whether a model fits on GPUs.

    ``SHORTER``: It fits with a shorter context than the model supports. ``DOUBTFUL``: The result is
    too close to the limit, since a part of the memory is estimated. ``UNKNOWN``: The size of the
    weights or of the cache is unknown.
    """

    FITS = "fits"
    SHORTER = "shorter"
    DOUBTFUL = "doubtful"
    UNKNOWN = "unknown"
    NO = "no"


# Reasons for ``UNKNOWN``.
NO_WEIGHTS = "the size of the model's weights is unknown"
CANNOT_BUILD = "vLLM can't build the model here"
# Values for models that certainly fit, with the whole context or a shorter one.
FITTING = (Fit.FITS, Fit.SHORTER)
_LEVELS = {
    Fit.FITS: Level.OK,
    Fit.SHORTER: Level.WARN,
    Fit.DOUBTFUL: Level.WARN,
    Fit.UNKNOWN: Level.UNKNOWN,
    Fit.NO: Level.FAIL,
}


@dataclass(frozen=True)
class Verdict:
    """A judgment on whether a model fits on GPUs.

    Attributes:
        choice: The GPUs.
        fit: Whether the model fits on them.
        reason: The calculation, or the reason why the model does not fit.
        context: Number of tokens of the longest text that fits; 0 if it is unknown.
        concurrency: Number of texts of that length that fit concurrently.
    """

    choice: "GpuChoice"
    fit: Fit
    reason: str
    context: int = 0
    concurrency: float = 0.0


def verdict_finding(verdict: Verdict, change: str, price: str = "") -> Finding:
    """Return a verdict as a finding, which proposes ``change`` if the model does not fit."""
    name, level = str(verdict.choice), _LEVELS[verdict.fit]
    if verdict.fit not in FITTING:
        change = "" if verdict.fit is Fit.UNKNOWN else change
        return Finding(level, "memory", f"{name}: {verdict.reason}", change)
    capacity = f"{verdict.context} tokens, concurrency {concurrency_text(verdict)}"
    text = f"{name}: {capacity}{price and f', {price} an hour'}; {verdict.reason}"
    more = "use more GPUs, or larger ones, for a longer context"
    return Finding(level, "memory", text, more if verdict.fit is Fit.SHORTER else "")


def concurrency_text(verdict: Verdict) -> str:
    """Return the number of concurrent requests of the maximum length, for messages."""
    return "any" if math.isinf(verdict.concurrency) else str(math.floor(verdict.concurrency))
