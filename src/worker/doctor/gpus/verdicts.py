"""What is known of a worker's models on GPUs that are not here."""

from dataclasses import dataclass
from enum import StrEnum

from worker.doctor.gpus.asked import Choice


class Fit(StrEnum):
    """Whether GPUs hold a model.

    ``SHORTER``: with less context than it could take; ``DOUBTFUL``: too close to tell, since what a
    GPU needs besides is an estimate; ``UNKNOWN``: how large the weights are is not known.
    """

    FITS = "fits"
    SHORTER = "shorter"
    DOUBTFUL = "doubtful"
    UNKNOWN = "unknown"
    NO = "no"


@dataclass(frozen=True)
class Verdict:
    """What is known of a model on GPUs.

    Attributes:
        choice: the GPUs.
        fit: whether they hold it.
        context: tokens of the longest text; 0 if it doesn't fit.
        texts: so long ones at once.
        why: the arithmetic, or what they lack.
    """

    choice: Choice
    fit: Fit
    context: int
    texts: float
    why: str
