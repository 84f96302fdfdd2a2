"""Makes the worker's settings and exports libraries' variables, before vLLM is imported."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from worker import masking
from worker.settings import Settings
from worker.settings.environment import Default
from worker.settings.mistakes import Mistake, SettingsError, collected
from worker.settings.sources import Given


@dataclass(frozen=True)
class Bootstrap:
    """The worker's settings, made once and exported to the process's environment.

    Attributes:
        given: everything that is set.
        settings: the worker's own, wrong ones at their defaults; None if no model is named.
        defaults: values of libraries' variables that the worker chose.
        mistakes: those found so far, in the operator's spelling.
    """

    given: Given
    settings: Settings | None
    defaults: tuple[Default, ...] = ()
    mistakes: tuple[Mistake, ...] = ()

    @classmethod
    def of(cls, given: Given) -> Self:
        """Make the worker's settings, and write what libraries read into the environment.

        A wrong setting doesn't end this: the model's download can begin, and vLLM can be asked
        what else is wrong.
        """
        mistakes: list[Mistake] = []
        settings = None
        with collected(mistakes):
            settings = Settings.from_env(given.values)
        if mistakes:
            wrong = {mistake.name for mistake in mistakes}
            right = {name: value for name, value in given.values.items() if name not in wrong}
            with contextlib.suppress(SettingsError):
                settings = Settings.from_env(right)
        defaults = settings.export() if settings else []
        if settings:
            # Those of files, which were not in the environment.
            masking.hide(settings.secrets())
        return cls(
            given, settings, tuple(defaults), (*given.mistakes, *map(given.as_written, mistakes))
        )


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
