"""Mistakes in settings: collected where they are found, and reported together."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from worker.errors import StartFailed


@dataclass(frozen=True)
class Mistake:
    """A wrong setting: its name, its value, and what is accepted instead.

    ``value`` is None if the setting is missing, and masked if it is a secret. ``example`` is an
    accepted value.
    """

    name: str
    value: str | None
    advice: str
    example: str | None = None

    def __str__(self) -> str:
        found = "is not set" if self.value is None else f"= {self.value!r}"
        shown = f", for example {self.name}={self.example}" if self.example else ""
        return f"{self.name} {found}: {self.advice}{shown}"


class SettingsError(StartFailed):
    """The worker does not start: all mistakes in its settings in one message.

    ``warnings`` are of settings that have no effect, which may be part of a mistake.
    """

    def __init__(self, mistakes: list[Mistake], warnings: Sequence[str] = ()) -> None:
        self.mistakes = sorted(mistakes, key=str)
        self.warnings = tuple(warnings)
        count = "1 setting is" if len(mistakes) == 1 else f"{len(mistakes)} settings are"
        lines = [f"{count} wrong, so the worker does not start:", *map(str, self.mistakes)]
        if warnings:
            lines += ["\nBeside these:", *warnings]
        super().__init__("\n  ".join(lines).replace("\n  \n", "\n"))


@contextlib.contextmanager
def collected(mistakes: list[Mistake]) -> Iterator[None]:
    """Add a block's mistakes to the list, so that those of several blocks are raised together."""
    try:
        yield
    except SettingsError as error:
        mistakes += error.mistakes
