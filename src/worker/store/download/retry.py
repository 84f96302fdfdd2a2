"""Does something once more, where what was wrong may have passed."""

from collections.abc import Callable
from logging import getLogger
from typing import Any, TypeVar

import backoff

log = getLogger(__name__)
T = TypeVar("T")

_TRIES = 4


def again(call: Callable[[], T], failure: type[Exception], for_good: Callable[[Any], bool]) -> T:
    """Call until it does not fail, a few times, with longer and longer waits between.

    Args:
        call: what is to be done.
        failure: what may be raised, and tried again after.
        for_good: tells which of these it is of no use to try again after.

    Raises:
        Exception: the last failure, or any other.
    """
    patient = backoff.on_exception(
        backoff.expo, failure, max_tries=_TRIES, giveup=for_good, on_backoff=_told, logger=None
    )
    return patient(call)()


def _told(details: Any) -> None:
    log.warning("%s; tried again in %.1f s", details["exception"], details["wait"])
