"""Finds that a prefetch would write to a volume that isn't there."""

from collections.abc import Iterator
from pathlib import Path

from worker.settings.mistakes import Mistake
from worker.settings.sources import Given


def unreadable_volume(given: Given) -> Iterator[Mistake]:
    """Find that BASE_PATH is set and no directory: a download would be lost with a pod."""
    place = given.values.get("BASE_PATH")
    if not place:
        return
    try:
        next(Path(place).iterdir(), None)
    except FileNotFoundError:
        advice = "there is no such directory; in a pod the volume is at /workspace"
    except (OSError, ValueError) as failure:
        advice = f"it can't be read: {getattr(failure, 'strerror', None) or failure}"
    else:
        return
    yield given.as_written(Mistake("BASE_PATH", place, advice))
