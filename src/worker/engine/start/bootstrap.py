"""Makes the worker's settings and exports libraries' variables, before vLLM is imported."""

import contextlib
from dataclasses import dataclass
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
