"""What is known of a worker's models on GPUs, and how that is reported."""

import math
from dataclasses import dataclass
from enum import StrEnum

from worker.doctor.findings import Finding, Level
from worker.doctor.gpus.asked import Choice


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

    choice: Choice
    fit: Fit
    why: str
    context: int = 0
    texts: float = 0.0


def finding(verdict: Verdict, change: str, price: str = "") -> Finding:
    """Return a verdict as a finding.

    Args:
        verdict: on GPUs.
        change: what to do where they don't hold the model.
        price: of the GPUs an hour, if known.
    """
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
